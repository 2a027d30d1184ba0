"""One fit, new or resumed: catalogue → plan → posterior → run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dustmap.distributed.group import Group
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.judging import judge
from pipelines.fit.mapping import first_map, map_and_samples, second_map
from pipelines.fit.opening import opened
from pipelines.fit.prior import learn_prior, plan
from pipelines.fit.progress import FitProgress
from pipelines.fit.shared_noise import learn_residual
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.fit.writing import FitReport, report_of, write
from pipelines.run.folder import check_run_folder, fit_of
from pipelines.saving.workspace import unfinished
from pipelines.storage.atomic import remove_directory

STAGES = (
    plan,
    learn_prior,
    first_map,
    learn_residual,
    second_map,
    learn_residual,
    map_and_samples,
    judge,
    write,
)


# Fields of the state that change the stars.
_OF_STARS = ("surveys", "box", "raised")


def run(states: list[FitState], read: FittedStars, at: Context) -> None:
    """Run the stages that remain of the one state, on the stars that were ``read``.

    The state is saved after each change.

    Raises `Stopped` after a signal; `opened` restores the state.
    """
    state = states.pop()
    stars = read.at(state)
    with FitProgress([stage.__name__ for stage in STAGES], at.stop) as progress:
        at.follow = progress.update
        for stage in STAGES[state.done :]:
            at.begin(stage.__name__)
            progress.begin(state.done)
            after = stage(state, stars, at)
            if stage is write:
                # This stage writes the run itself.
                return
            # Rank 0 may have worked alone for longer than a collective waits. Only it
            # knows: the others may have a copy of its state.
            at.group.meet()
            changed = at.group.numbers(int(after is not state))[0]
            if any(getattr(after, n) is not getattr(state, n) for n in _OF_STARS):
                stars = read.at(after)
            state = at.save(after) if changed else replace(state, done=state.done + 1)
            # With its progress, which would stay in memory.
            del after


def fit(
    source: Path,
    output: Path,
    config: FitConfig,
    *,
    overwrite: bool = False,
    resume: bool = False,
    group: Group | None = None,
) -> FitReport:
    """Fit a map to a catalogue written by ``ingest`` or ``simulate``.

    ``overwrite`` replaces an existing run or unfinished fit at ``output``. ``resume``
    continues a stopped fit into ``output``, begins one if there is none, and does
    nothing if it is finished. Rank 0 of the ``group``, the processes of this fit,
    writes.

    Raises `InputError` if the catalogue has no extinctions or too few usable stars, the
    budget allows no grid, the output exists or cannot be written, or the state to
    resume is damaged or belongs to another fit; `Stopped` after a signal, when the fit
    can be resumed; `FloatingPointError` if numbers are no longer finite.
    """
    group, begun = group or Group(), unfinished(output)
    finished = (output / "run.json").is_file() and not overwrite
    if begun is not None and "fit" in begun.facts:
        # The fit was killed during its clean-up.
        finished = begun.facts["fit"] == fit_of(output)
    if not (resume and finished):
        overwrite = overwrite or bool(resume and begun and begun.facts.get("overwrite"))
        check_run_folder(output, overwrite=overwrite)
        # Check before rank 0 begins there.
        group.meet()
        how = {"overwrite": overwrite, "resume": resume}
        with opened(source, output, config, group=group, **how) as (states, read, at):
            run(states, read, at)
    else:
        # Rank 0 cleans up after all ranks have seen it.
        group.meet()
        if begun is not None and group.first:
            remove_directory(begun.folder)
        say(f"{output} is finished: nothing is left to do")
    group.meet()
    return report_of(output)
