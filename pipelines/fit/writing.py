"""The last stage of a fit: what it found, judged by unseen stars, as a run folder."""

from __future__ import annotations

from typing import Any

from pipelines.fit.result import (
    FitReport,
    posterior_of,
    write_fitted,
    write_record,
    write_records,
)
from pipelines.fit.sample import Sample
from pipelines.run.assessment import crossed, sight_line_lengths
from pipelines.run.folder import State, write_state
from pipelines.run.held_out import FILE as HELD_OUT
from pipelines.run.held_out import held_out_score, write_held_out
from pipelines.run.predict import predict_columns
from pipelines.saving.fit_state import FitState
from pipelines.saving.heartbeat import peak_memory
from pipelines.saving.session import Session
from pipelines.storage.atomic import atomic_directory, write_manifest


def write_run(session: Session, state: FitState, sample: Sample) -> FitReport:
    """Write the run folder, by the first rank; what the fit did, on all.

    Raises
    ------
    OSError
        If it cannot be written; what the fit saved before stays.
    """
    config, clock, result = session.config, session.clock, state.result
    assert result is not None
    support = sight_line_lengths(result.plan, sample.train, session.group)
    test = sample.test if session.group.first else sample.test.select(slice(0))
    predictions = {}
    if len(test):
        # Of a grid in slabs only the first rank has the posterior.
        posterior = posterior_of(result, config)
        predictions = predict_columns(result.plan, posterior, test)
    clock.lap("held-out test")
    report = FitReport(
        output=session.output,
        plan=result.plan,
        counts=sample.counts,
        held_out=held_out_score(predictions, test, result.plan),
        seconds=clock.seconds,
        memory=peak_memory(),
        converged=result.converged,
        messages=(*result.messages, crossed(support)),
    )
    if not session.group.first:
        return report
    tensors = State(mean=result.mean, samples=result.samples, support=support)
    work = session.manager.work
    with atomic_directory(
        session.output, overwrite=work.overwrite, within=work.folder
    ) as folder:
        provenance = _provenance(session, sample)
        write_record(folder, config, report, facts=result.facts, provenance=provenance)
        write_fitted(folder, sample.train)
        write_state(folder, tensors)
        write_records(folder, session.metrics.data)
        if len(test):
            write_held_out(folder / HELD_OUT, test, result.plan, predictions)
        write_manifest(folder)
    return report


def _provenance(session: Session, sample: Sample) -> dict[str, Any]:
    return {
        "fit": session.manager.work.identifier,
        "taken_up": session.manager.history,
        "inputs": session.manager.identity.inputs,
        "catalogue": sample.meta,
    }
