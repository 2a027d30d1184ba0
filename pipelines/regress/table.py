"""The rows of a table to fit and to test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from astropy import units as u

from pipelines.base.errors import InputError
from pipelines.catalog.sources import Source, locate, open_source, read_columns
from pipelines.catalog.tables import split_part
from pipelines.catalog.text import NULLS
from pipelines.catalog.units import parse_unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows to fit and to test, in the table's own units.

    Inputs x (N, D), target y and noise (N,), if any, are finite. ``row`` numbers rows
    of the table from 0; ``missing`` and ``left_out`` count rows without a finite value,
    by column and in all, ``repeated`` are `repeats` of others; ``notes`` are for the
    user; ``units`` are by column, if known.
    """

    x: np.ndarray
    y: np.ndarray
    row: np.ndarray
    test: np.ndarray
    inputs: tuple[str, ...]
    target: str
    missing: dict[str, int]
    left_out: int
    notes: tuple[str, ...]
    units: Mapping[str, u.UnitBase] = field(default_factory=dict)
    noise: np.ndarray | None = None
    repeated: int = 0

    def part(self, test: bool) -> dict[str, Any]:
        """Return inputs and target of the rows to test, or to fit, with their units."""
        names, some = (*self.inputs, self.target), self.test == test
        columns = zip(names, [*self.x[some].T, self.y[some]], strict=True)
        return _with_units(dict(columns), self.units)

    def noise_of(self, test: bool) -> Any:
        """Return the noise of the rows to test, or to fit, in the target's unit."""
        if self.noise is None:
            return None
        some, unit = self.noise[self.test == test], self.units.get(self.target)
        return some if unit is None else u.Quantity(some, unit)


def read_rows(
    path: Path,
    target: str,
    inputs: Sequence[str] | None = None,
    *,
    test_fraction: float = 0.2,
    split_column: str | None = None,
    noise: str | None = None,
    seed: int = 0,
) -> Rows:
    """Choose columns and complete rows of a table, and hold some of them out.

    ``path`` is a file of any format that `dustmap ingest` reads, ``inputs`` are names
    of columns, by default all other columns of numbers. ``test_fraction`` is the share
    of the rows to hold out at random, by the ``seed``; ``split_column`` has 1 for rows
    to test and 0 for rows to fit instead. The column ``noise`` has the standard
    deviation of the rows' noise, in the target's unit.

    Raises `InputError` if the file is not a table, a column is absent or unusable, or
    no row remains to fit or to test.
    """
    if not 0 < test_fraction < 1:
        raise InputError(f"the test fraction lies between 0 and 1, got {test_fraction}")
    if not split_part(path)[0].is_file():
        raise InputError(f"{path} is not a file: name a table")
    source, notes = open_source(path), []
    reserved = tuple(filter(None, (target, split_column, noise)))
    if inputs is None:
        used = {*reserved, *source.masks.values()}
        free = [name for name in source.columns if name not in used]
        named = [n for n in free if n.strip() and source.columns[n].width is None]
        columns = _read(source, [*reserved, *named])
        inputs = [name for name in named if columns[name].dtype == np.float64]
        if others := [name or "(unnamed)" for name in free if name not in inputs]:
            notes.append(
                "columns of text, of several values or without a name are left out: "
                + ", ".join(others)
            )
        if not inputs:
            raise InputError(f"{path} has no column of numbers beside {target!r}")
    else:
        if not inputs:
            raise InputError("--inputs names no column: give names or leave it out")
        if repeated := sorted({n for n in inputs if inputs.count(n) > 1}):
            raise InputError(f"--inputs names {', '.join(repeated)} twice")
        if taken := [name for name in (target, noise) if name in inputs]:
            raise InputError(
                f"{taken[0]!r} is target or noise: leave it out of --inputs"
            )
        columns = _read(source, [*reserved, *inputs])
    for name in (*reserved, *inputs):
        _require_numbers(path, name, columns[name])
    bad = {name: ~np.isfinite(columns[name]) for name in (*inputs, *reserved)}
    missing = {name: int(rows.sum()) for name, rows in bad.items() if rows.any()}
    kept = ~np.any(list(bad.values()), axis=0)
    if not kept.any():
        counts = ", ".join(f"{n} in {c}" for c, n in missing.items())
        raise InputError(
            f"{path}: every one of {len(kept)} rows lacks some finite value (missing "
            f"by column: {counts}): choose --inputs with fewer gaps"
        )
    left_out = int((~kept).sum())
    rows = np.stack([columns[name][kept] for name in (*inputs, *reserved)], axis=1)
    again = repeats(rows, len(inputs))
    kept[np.flatnonzero(kept)[again]] = False
    if repeated := int(again.sum()):
        notes.append(f"{repeated:,} rows repeat others exactly: each counts once")
    if split_column is None:
        order = np.random.default_rng(seed).permutation(int(kept.sum()))
        test = order.argsort() < max(1, round(test_fraction * len(order)))
    else:
        marks = columns[split_column][kept]
        odd = marks[(marks != 0) & (marks != 1)]
        if len(odd):
            raise InputError(
                f"{path}: {split_column!r} must hold 0 for rows to fit and 1 for rows "
                f"to test, {len(odd)} rows hold something else, the first {odd[0]:g}"
            )
        test = marks == 1
    if test.all() or not test.any():
        raise InputError(
            f"{path}: {int((~test).sum())} rows to fit and {int(test.sum())} to test "
            f"remain of {len(kept)}: both are needed"
        )
    train = np.flatnonzero(kept)[~test]
    constant = [name for name in inputs if np.ptp(columns[name][train]) == 0]
    varying = tuple(name for name in inputs if name not in constant)
    if not varying:
        raise InputError(f"{path}: every input is constant ({', '.join(constant)})")
    if constant:
        notes.append(f"constant inputs are left out: {', '.join(constant)}")
    return Rows(
        x=np.stack([columns[name][kept] for name in varying], axis=1),
        y=columns[target][kept],
        row=np.flatnonzero(kept),
        test=test,
        inputs=varying,
        target=target,
        missing=missing,
        left_out=left_out,
        repeated=repeated,
        notes=tuple(notes),
        units=_units(source, (*varying, target)),
        noise=columns[noise][kept] if noise else None,
    )


def repeats(rows: np.ndarray, inputs: int) -> np.ndarray:
    """Return a mask of rows that repeat an earlier one in every column.

    A copy would predict itself where scales and noise are learnt. None is a repeat
    where neither the inputs, the first columns, nor the target after them tells nine
    tenths of the different rows apart, or each stands for ten on average: of so few
    values equal rows may be measurements of their own.
    """
    first = np.unique(rows, axis=0, return_index=True)[1]
    again = np.ones(len(rows), dtype=bool)
    again[first] = False
    if again.any():
        parts = rows[:, :inputs], rows[:, inputs]
        values = max(len(np.unique(part, axis=0)) for part in parts)
        again &= values > 0.9 * len(first) > 0.09 * len(rows)
    return again


def read_inputs(source: Source, names: Sequence[str]) -> dict[str, Any]:
    """Return columns of numbers (N,), with units and NaN for gaps.

    Raises `InputError` if a column is absent or holds something else.
    """
    columns = _read(source, names)
    for name, column in columns.items():
        _require_numbers(source.path, name, column)
    return _with_units(columns, _units(source, names))


def _with_units(columns: dict[str, Any], units: Mapping[str, u.UnitBase]) -> Any:
    """Return columns as quantities, where they have a unit."""
    return columns | {n: u.Quantity(columns[n], unit) for n, unit in units.items()}


def _units(source: Source, names: Sequence[str]) -> dict[str, u.UnitBase]:
    """Return the known units of columns, without logarithmic ones."""
    texts = {name: source.columns[locate(source, name)[0]].unit for name in names}
    found = {name: parse_unit(text) for name, text in texts.items() if text}
    return {n: unit for n, unit in found.items() if isinstance(unit, u.UnitBase)}


def _read(source: Source, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Read columns: numbers as float64 with NaN for gaps, others as they are."""
    batches = list(read_columns(source, [(name, "any") for name in names]))
    if not batches:
        raise InputError(f"{source.path} has no rows")
    columns = {}
    for name in names:
        column = np.ma.concatenate([batch[name, "any"] for batch in batches])
        if column.dtype.kind in "biuf":
            column = column.astype(np.float64).filled(np.nan)
        elif column.dtype.kind == "O":
            column = column.filled(None)
            column[np.isin(column, (*NULLS, "?"))] = None
            if all(word is None or _is_number(word) for word in column):
                column = column.astype(np.float64)
        columns[name] = column
    return columns


def _require_numbers(path: Path, name: str, column: np.ndarray) -> None:
    if column.dtype == np.float64:
        return
    row = next((i for i, word in enumerate(column) if word and not _is_number(word)), 0)
    raise InputError(
        f"{path}: {name!r} must hold numbers, but row {row + 1} holds {column[row]!r}: "
        "correct or remove it"
    )


def _is_number(word: object) -> bool:
    try:
        return math.isfinite(float(str(word)))
    except ValueError:
        return False
