"""From a table to inputs and a target: which columns, which rows, which split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.base.errors import InputError
from pipelines.regress.options import Options
from pipelines.regress.table import Table

# Fewer rows to fit say nothing about a covariance.
FEWEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitData:
    """Rows to fit and to test, in the table's own units.

    Parameters
    ----------
    x, y
        Inputs (N, D) and target (N,), finite.
    row
        Number of every row in the table, from 0.
    test
        Whether it is held out.
    inputs, target
        Names of the columns.
    classes
        What stands for 0 and 1 in the target of two classes.
    missing
        Rows left out for a missing or infinite value, by column.
    left_out
        Rows left out in all.
    notes
        Choices made on the way, for people.
    """

    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    test: np.ndarray
    inputs: tuple[str, ...]
    target: str
    classes: tuple[str, str] | None
    missing: dict[str, int]
    left_out: int
    notes: tuple[str, ...]


def select(table: Table, options: Options) -> SplitData:
    """Choose columns and rows, and split them.

    Raises
    ------
    InputError
        If a column is absent or of no use, or too few rows remain.
    """
    notes = list(table.notes)
    names = _input_names(table, options, notes)
    y, classes = _target(table, options, notes)
    columns = {name: table.numbers(name, "input") for name in names}
    used = {**columns, options.target: y}
    if options.split_column is not None:
        split = table.numbers(options.split_column, "split column")
        used[options.split_column] = split
    kept, missing = _complete_rows(table, used)
    test = _test_rows(table, options, {n: v[kept] for n, v in used.items()})
    train = np.flatnonzero(kept)[~test]
    _check_rows(table, options, y[train], int(test.sum()))
    constant = [n for n in names if np.ptp(columns[n][train]) == 0]
    names = tuple(n for n in names if n not in constant)
    if not names:
        raise InputError(
            f"{table.path}: every input is constant ({', '.join(constant)}): name "
            "others with --inputs"
        )
    if constant:
        notes.append(f"constant inputs are left out: {', '.join(constant)}")
    return SplitData(
        x=np.stack([columns[name][kept] for name in names], axis=1),
        y=y[kept],
        row=np.flatnonzero(kept),
        test=test,
        inputs=names,
        target=options.target,
        classes=classes,
        missing=missing,
        left_out=int((~kept).sum()),
        notes=tuple(notes),
    )


def _input_names(table: Table, options: Options, notes: list[str]) -> tuple[str, ...]:
    if options.inputs is not None:
        repeated = {n for n in options.inputs if options.inputs.count(n) > 1}
        if not options.inputs:
            raise InputError("--inputs names no column: give names or leave it out")
        if repeated:
            raise InputError(f"--inputs names {', '.join(sorted(repeated))} twice")
        return options.inputs
    table.column(options.target, "target")
    kept = (options.target, options.split_column)
    names = tuple(n for n in table.numeric if n not in kept)
    others = (n for n in (*table.columns, *table.other) if n not in table.numeric)
    text = [n for n in others if n not in kept]
    if text:
        notes.append(f"columns without numbers are left out: {', '.join(text)}")
    if not names:
        raise InputError(
            f"{table.path} has no column of numbers beside the target "
            f"{options.target!r}: a regression needs an input"
        )
    return names


def _target(
    table: Table, options: Options, notes: list[str]
) -> tuple[np.ndarray, tuple[str, str] | None]:
    """The target as numbers; of two classes as 0 and 1, and what these were."""
    name, values = options.target, table.column(options.target, "target")
    text = values.dtype != np.float64
    known = np.array([v is not None for v in values]) if text else np.isfinite(values)
    found = np.unique(values[known].astype(str) if text else values[known])
    if not options.noise.classes:
        if text and len(found) == 2:
            raise InputError(
                f"{table.path}: the target {name!r} holds two words: use "
                "--likelihood bernoulli to predict which"
            )
        if len(found) == 2:
            notes.append(
                f"{name} has two values only: --likelihood bernoulli would take them "
                "for classes"
            )
        return table.numbers(name, "target"), None
    if len(found) != 2:
        shown = ", ".join(str(v) for v in found[:5]) + (" ..." * (len(found) > 5))
        raise InputError(
            f"{table.path}: the target {name!r} of the likelihood bernoulli must have "
            f"two values, it has {len(found)}: {shown or 'none'}"
        )
    y = np.full(len(values), np.nan)
    y[known] = (values[known] == found[1]).astype(np.float64)
    low, high = (str(v) if text else f"{v:g}" for v in found)
    if (low, high) != ("0", "1"):
        notes.append(f"classes of {name}: {low} is 0, {high} is 1")
    return y, (low, high)


def _complete_rows(
    table: Table, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, int]]:
    """Rows in which every column is finite; how many each column lacks."""
    bad = {name: ~np.isfinite(values) for name, values in columns.items()}
    missing = {name: int(rows.sum()) for name, rows in bad.items() if rows.any()}
    for name, count in missing.items():
        if count == table.rows:
            raise InputError(
                f"{table.path}: no row has a finite value of {name!r}: leave the "
                "column out with --inputs, or correct the file"
            )
    kept = ~np.any(list(bad.values()), axis=0)
    if not kept.any():
        counts = ", ".join(f"{n} in {c}" for c, n in missing.items())
        raise InputError(
            f"{table.path}: every row lacks some value (missing by column: {counts}): "
            "choose --inputs with fewer gaps"
        )
    return kept, missing


def _test_rows(
    table: Table, options: Options, columns: dict[str, np.ndarray]
) -> np.ndarray:
    count = len(columns[options.target])
    if options.split_column is not None:
        split = columns[options.split_column]
        odd = split[(split != 0) & (split != 1)]
        if len(odd):
            raise InputError(
                f"{table.path}: the split column {options.split_column!r} holds 0 for "
                f"rows to fit and 1 for rows to test, {len(odd)} rows hold something "
                f"else, the first {odd[0]:g}"
            )
        return split == 1
    order = np.random.default_rng(options.seed).permutation(count)
    return order.argsort() < max(1, round(options.test_fraction * count))


def _check_rows(table: Table, options: Options, y: np.ndarray, tested: int) -> None:
    """Enough rows on both sides, and a target that varies."""
    if len(y) < FEWEST or not tested:
        raise InputError(
            f"{table.path}: {len(y)} rows to fit and {tested} to test remain of "
            f"{table.rows}, at least {FEWEST} and 1 are needed"
        )
    if np.ptp(y) == 0:
        raise InputError(
            f"{table.path}: the target {options.target!r} is {y[0]:g} in every row to "
            "fit: there is nothing to learn"
        )
