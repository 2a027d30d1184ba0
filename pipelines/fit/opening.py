"""The beginning of a fit, or its resumption from a saved state."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from dustmap.distributed.group import Group
from pipelines.base.errors import InputError, Stopped
from pipelines.base.progress import say
from pipelines.config import FitConfig
from pipelines.fit.context import Context
from pipelines.fit.stars import FittedStars
from pipelines.fit.state import FitState
from pipelines.model.cost import Machine, most_stars
from pipelines.model.problem import device_of
from pipelines.saving.identity import differences, identity_of
from pipelines.saving.state_file import read_state
from pipelines.saving.stopping import StopFlag
from pipelines.saving.workspace import claimed, unfinished
from pipelines.storage.digests import input_digests


@contextmanager
def opened(
    source: Path,
    output: Path,
    config: FitConfig,
    *,
    overwrite: bool,
    resume: bool,
    group: Group,
) -> Iterator[tuple[list[FitState], FittedStars, Context]]:
    """Begin or resume a fit; after the block, only the run remains.

    The stars are as they were read (see `FittedStars.at`). The list has one state, to
    be taken out of it: further references would keep a resumed fit's samples in memory.

    Raises `InputError` if the catalogue cannot be fitted; or if a fit exists at the
    output and ``resume`` is false, another process works on it, its state is
    incomplete, or its configuration, catalogue or version differs.
    """
    device = device_of(config)
    try:
        team, teams = group.split(config.inference.teams)
    except ValueError as error:
        raise InputError(
            f"inference.teams = {config.inference.teams}: {error}; start a multiple of "
            "that many processes (torchrun --nproc-per-node)"
        ) from error
    with ExitStack() as stack:
        stop = stack.enter_context(StopFlag())
        if group.first:
            claim = claimed(output, overwrite=overwrite, resume=resume)
            work = stack.enter_context(claim)
        group.meet()
        if not group.first:
            # The workspace claimed by rank 0.
            work = unfinished(output)
            if work is None:
                raise InputError(
                    f"{output}: this rank cannot see the workspace of rank 0: run all "
                    "ranks on one file system"
                )
        # Only rank 0 reads the whole catalogue for its hash.
        inputs = group.from_first(lambda: input_digests(source))
        at = Context(
            config=config,
            device=device,
            group=group,
            team=team,
            teams=teams,
            work=work,
            stop=stop,
            inputs=inputs,
        )
        found = _taken_up(at)
        # Rank 0 writes the next state only after all ranks have read this one.
        group.meet()
        machine = Machine(ranks=group.size, here=group.here)
        # A fit that is resumed by other processes keeps its bins.
        most = group.from_first(
            lambda: work.facts.get("most_stars") or most_stars(config, machine)
        )
        at.note(state="planning", most_stars=most)
        try:
            # A resumed fit repeats its first draws, to hold out the same stars.
            generator = device["generator"]
            given = source, config, group, generator, most, work.folder
            stars = FittedStars.read(*given)
            states = [FitState(generator=generator.get_state())]
            if found:
                path, where = work.state, device["device"]
                states = [FitState.restore(found.pop("fit"), path, where)]
                generator.set_state(states[0].generator)
            at.clock.lap("read")
            yield states, stars, at
        except Stopped as reason:
            at.note(state="stopped", message=str(reason))
            raise
        except BaseException as error:
            at.note(state="failed", message=f"{type(error).__name__}: {error}")
            if at.last is not None:
                say(
                    f"the checkpoint {at.last} stays: remove the cause, then continue "
                    "with the same command and --resume"
                )
            raise


def _taken_up(at: Context) -> dict[str, Any]:
    """Return the state to resume, or nothing, and restore the context."""
    path = at.last
    if path is None:
        return {}
    found = read_state(path)
    changed = differences(identity_of(at.config, at.inputs), found["identity"])
    if changed:
        raise InputError(
            f"{path} belongs to another fit:\n  "
            + "\n  ".join(changed)
            + "\nContinue with the original settings, or start again with --overwrite"
        )
    threads = torch.get_num_threads()
    if threads != found["threads"]:
        before = found["threads"]
        say(f"note: last digits may differ: {threads} threads, before {before}")
    age = time.time() - found["written"]
    say(f"resumed from {path} ({found['stage']}, {age:.0f} s old)")
    once = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "stage": found["stage"],
    }
    at.clock.seconds.update(found["seconds"])
    at.metrics += json.loads(found["records"])
    at.history += [*found["history"], once]
    return found
