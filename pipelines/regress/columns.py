"""From a table to inputs and a target: which columns, which rows, which split."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
    notes
        What was decided on the way, for people.
    """

    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    test: np.ndarray
    inputs: tuple[str, ...]
    target: str
    classes: tuple[str, str] | None = None
    missing: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    notes: tuple[str, ...] = ()


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
    split = None
    if options.split_column is not None:
        split = table.numbers(options.split_column, "split column")
        columns_seen = {**columns, options.split_column: split, options.target: y}
    else:
        columns_seen = {**columns, options.target: y}
    kept, missing = _whole_rows(table, columns_seen)
    data = SplitData(
        x=np.stack([columns[name][kept] for name in names], axis=1),
        y=y[kept],
        row=np.nonzero(kept)[0],
        test=_test_rows(table, options, None if split is None else split[kept], kept),
        inputs=names,
        target=options.target,
        classes=classes,
        missing=missing,
        left_out=int((~kept).sum()),
        notes=tuple(notes),
    )
    return _checked(table, options, data)


def _input_names(table: Table, options: Options, notes: list[str]) -> tuple[str, ...]:
    if options.inputs is not None:
        repeated = {n for n in options.inputs if options.inputs.count(n) > 1}
        if not options.inputs:
            raise InputError("--inputs names no column: give names or leave it out")
        if repeated:
            raise InputError(f"--inputs names {', '.join(sorted(repeated))} twice")
        return options.inputs
    table.column(options.target, "target")
    kept = {options.target, options.split_column}
    names = tuple(n for n in table.numeric if n not in kept)
    text = [n for n in table.columns if n not in table.numeric and n not in kept]
    text += [n for n in table.other if n not in kept]
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
    values = table.column(options.target, "target")
    if not options.noise.classes:
        if values.dtype != np.float64 and len({v for v in values if v}) == 2:
            raise InputError(
                f"{table.path}: the target {options.target!r} holds two words: use "
                "--likelihood bernoulli to predict which"
            )
        numbers = table.numbers(options.target, "target")
        if len(np.unique(numbers[np.isfinite(numbers)])) == 2:
            notes.append(
                f"{options.target} has two values only: --likelihood bernoulli would "
                "take them for classes"
            )
        return numbers, None
    text = values.dtype != np.float64
    known = np.array([v is not None for v in values]) if text else np.isfinite(values)
    found = np.unique(values[known].astype(str) if text else values[known])
    if len(found) != 2:
        shown = ", ".join(str(v) for v in found[:5]) + (" ..." * (len(found) > 5))
        raise InputError(
            f"{table.path}: the target {options.target!r} of the likelihood bernoulli "
            f"must have two values, it has {len(found)}: {shown or 'none'}"
        )
    y = np.full(len(values), np.nan)
    y[known] = (values[known] == found[1]).astype(np.float64)
    names = tuple(str(v) if text else f"{v:g}" for v in found)
    if names != ("0", "1"):
        notes.append(f"classes of {options.target}: {names[0]} is 0, {names[1]} is 1")
    return y, (names[0], names[1])


def _whole_rows(
    table: Table, columns: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, int]]:
    """Rows in which every column is finite; how many each column lacks."""
    kept = np.ones(table.rows, dtype=bool)
    missing = {}
    for name, values in columns.items():
        bad = ~np.isfinite(values)
        kept &= ~bad
        if bad.all():
            raise InputError(
                f"{table.path}: no row has a finite value of {name!r}: leave the "
                "column out with --inputs, or correct the file"
            )
        if bad.any():
            missing[name] = int(bad.sum())
    if not kept.any():
        counts = ", ".join(f"{n} in {c}" for n, c in missing.items())
        raise InputError(
            f"{table.path}: every row lacks some value (missing by column: {counts}): "
            "choose --inputs with fewer gaps"
        )
    return kept, missing


def _test_rows(
    table: Table, options: Options, split: np.ndarray | None, kept: np.ndarray
) -> np.ndarray:
    count = int(kept.sum())
    if split is not None:
        odd = split[(split != 0) & (split != 1)]
        if len(odd):
            raise InputError(
                f"{table.path}: the split column {options.split_column!r} holds 0 for "
                f"rows to fit and 1 for rows to test, {len(odd)} rows hold something "
                f"else, the first {odd[0]:g}"
            )
        return split == 1
    order = np.random.default_rng(options.seed).permutation(count)
    test = np.zeros(count, dtype=bool)
    test[order[: max(1, round(options.test_fraction * count))]] = True
    return test


def _checked(table: Table, options: Options, data: SplitData) -> SplitData:
    """Constant inputs dropped; enough rows on both sides; a target that varies."""
    train = ~data.test
    if int(train.sum()) < FEWEST or not data.test.any():
        raise InputError(
            f"{table.path}: {int(train.sum())} rows to fit and {int(data.test.sum())} "
            f"to test remain of {table.rows}, at least {FEWEST} and 1 are needed"
        )
    if np.ptp(data.y[train]) == 0:
        raise InputError(
            f"{table.path}: the target {data.target!r} is {data.y[train][0]:g} in "
            "every row to fit: there is nothing to learn"
        )
    varies = np.ptp(data.x[train], axis=0) > 0
    if varies.all():
        return data
    constant = [n for n, v in zip(data.inputs, varies, strict=True) if not v]
    if not varies.any():
        raise InputError(
            f"{table.path}: every input is constant ({', '.join(constant)}): name "
            "others with --inputs"
        )
    note = f"constant inputs are left out: {', '.join(constant)}"
    return replace(
        data,
        x=data.x[:, varies],
        inputs=tuple(n for n, v in zip(data.inputs, varies, strict=True) if v),
        notes=(*data.notes, note),
    )
