"""Readers of binary tables and VOTables, and the unpacking of packed files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import h5py
import numpy as np
import pyarrow.parquet as pq
from astropy.io import fits
from astropy.io.votable import parse
from astropy.table import MaskedColumn, Table, represent_mixins_as_columns
from astropy.table.meta import get_header_from_yaml

from pipelines.base.errors import InputError
from pipelines.catalog import frames
from pipelines.catalog.tables import ROWS_PER_BATCH, is_data, native, to_numpy

Kinds = Mapping[str, str]
Batches = Iterator[dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """A column as the file describes it; two-dimensional ones have a ``width``."""

    unit: str | None = None
    width: int | None = None
    description: str | None = None


Described = list[tuple[str, ColumnInfo]]
Opened = tuple[Described, Callable[[Kinds], Batches], frames.Frames]
"""Columns of a file in order, a reader as for `Source.batches`, and frames."""


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Yield the bytes of a file, or of the one table packed in it.

    Raises `InputError` if a zip archive holds several files.
    """
    with open(path, "rb") as file:
        start = file.read(6)
    if not start.startswith(b"PK\x03\x04"):
        packed = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
        found = (opener for first, opener in packed.items() if start.startswith(first))
        opener: Any = next(found, open)
        with opener(path, "rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if is_data(Path(n)) and n[-1] != "/"]
        if len(names) != 1:
            raise InputError(
                f"{path} packs {len(names)} files ({', '.join(names)[:200]}), expected "
                "one: unpack it, and name one of them or their folder"
            )
        with archive.open(names[0]) as file:
            yield file


@contextmanager
def _seekable(path: Path) -> Iterator[Any]:
    """Yield a plain file's path, or the bytes of a packed one in memory."""
    with unpacked(path) as file:
        yield path if type(file) is io.BufferedReader else io.BytesIO(file.read())


def open_parquet(path: Path, _: str) -> Opened:
    """Open a parquet file.

    Units are in the fields' metadata (``unit`` or ``units``) or in astropy's header.
    """
    with _seekable(path) as file:
        schema = pq.read_schema(file)
    header = (schema.metadata or {}).get(b"table_meta_yaml")
    units, stated_frames = _of_header(header.decode().split("\n") if header else ())
    described: Described = []
    for field in schema:
        own = field.metadata or {}
        stated = (own.get(b"unit") or own.get(b"units") or b"").decode().strip()
        width = getattr(field.type, "list_size", None)
        info = ColumnInfo(unit=stated or units.get(field.name) or None, width=width)
        described.append((field.name, info))

    def read(kinds: Kinds) -> Batches:
        with _seekable(path) as held, pq.ParquetFile(held, pre_buffer=False) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=list(kinds)):
                yield {name: to_numpy(batch.column(name)) for name in kinds}

    return described, read, stated_frames


class _Place(NamedTuple):
    """Where an HDF5 file has a column: a data set, maybe a field, maybe an item of it.

    ``text`` if it has the bytes of all rows' words, divided as vaex does.
    """

    path: str
    field: str = ""
    item: int | None = None
    text: bool = False

    def rows(self, file: Any) -> int:
        """Return the number of rows."""
        data = file[self.path]
        return len(data.parent["indices"]) - 1 if self.text else len(data)

    def read(self, file: Any, rows: slice) -> np.ndarray:
        """Return some rows, masked where vaex or an attribute states it."""
        data = file[self.path]
        around = data.parent
        if self.text:
            ends = around["indices"][rows.start : rows.stop + 1]
            raw = data[ends[0] : ends[-1]].tobytes()
            words = [raw[a:b].decode() for a, b in pairwise(ends - ends[0])]
            values = np.array(words, dtype=object)
        else:
            values = data[self.field, rows] if self.field else data[rows]
            values = native(values if self.item is None else values[:, self.item])
        fill = data.attrs.get("_FillValue", data.fillvalue)
        # Data sets that state none have zero.
        if data.dtype.kind in "fiu" and np.any(fill):
            values = np.ma.array(values, mask=values == fill)
        if data.name.endswith("/data") and "mask" in around:
            values = np.ma.array(values, mask=around["mask"][rows])
        elif data.name.endswith("/data") and "null_bitmap" in around:
            valid = np.unpackbits(around["null_bitmap"][:], bitorder="little")
            values = np.ma.array(values, mask=valid[rows][: len(values)] == 0)
        return values


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler of lists of text, which runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no list of names")


def open_hdf5(path: Path, part: str) -> Opened:
    """Open the columns of an HDF5 file, or of its group ``part``.

    Data sets of one or two dimensions are columns, named by their path; the fields of a
    compound one are separate columns. Tables of pandas, fixed or appendable, and of
    vaex have their own names. Units are the attribute ``unit`` or ``units``, of the
    data set or, in vaex, its group, or those in astropy's header. Values equal to the
    attribute ``_FillValue``, or to a data set's own fill value if that is not zero, are
    missing.
    """
    found: dict[str, _Place] = {}
    described: Described = []
    units: dict[str, str] = {}
    stated: frames.Frames = {}

    def add(name: str, place: _Place, data: Any, unit: str | None = None) -> None:
        width = data.shape[1] if data.ndim == 2 and place.item is None else None
        found[name] = place
        described.append((name, ColumnInfo(unit=unit, width=width)))

    def visit(place: str, data: Any) -> None:
        if not isinstance(data, h5py.Dataset) or data.ndim not in (1, 2):
            return
        group: Any = data.parent
        if part and not f"/{place}".startswith(f"/{part.strip('/')}"):
            return
        last = place.rpartition("/")[2]
        kind = _text(group.attrs.get("pandas_type", ""))
        owner = group.parent.parent
        if place.endswith(".__table_column_meta__"):
            lines = [line.decode() for line in np.asarray(data[:])]
            for known, said in zip((units, stated), _of_header(lines)):
                known |= said
        elif kind == "frame":
            # Columns of text are pickled.
            if re.fullmatch(r"block\d+_values", last) and data.ndim == 2:
                for item, label in enumerate(group[last.replace("values", "items")][:]):
                    add(_text(label), _Place(place, item=item), data)
        elif kind == "frame_table":
            for field in data.dtype.names or ():
                stored = data.attrs.get(f"{field}_kind")
                names = [field]
                if stored is not None and field != "index":
                    names = _PlainUnpickler(io.BytesIO(bytes(stored))).load()
                several = data.dtype[field].shape != ()
                for item, name in enumerate(names):
                    own = _Place(place, field, item if several else None)
                    add(str(name), own, data)
        elif "/_i_table/" in f"/{place}":
            pass
        elif _text(owner.attrs.get("type", "")) == "table" and "data" in group:
            if last == "data":
                name = group.name.rpartition("/")[2]
                text = _text(data.attrs.get("dtype", "")) == "str"
                add(name, _Place(place, text=text), data, _unit(data) or _unit(group))
        else:
            for field in data.dtype.names or ():
                add(field, _Place(place, field), data)
            if not data.dtype.names:
                name = place.removeprefix(f"{part.strip('/')}/") if part else place
                add(name, _Place(place), data, _unit(data))

    with _seekable(path) as held, h5py.File(held, "r") as file:
        file.visititems(visit)

    def read(kinds: Kinds) -> Batches:
        with _seekable(path) as held, h5py.File(held, "r") as file:
            rows = {name: found[name].rows(file) for name in kinds}
            if len(set(rows.values())) > 1:
                raise InputError(f"{path}: columns of different lengths: {rows}")
            for start in range(0, max(rows.values(), default=0), ROWS_PER_BATCH):
                piece = slice(start, start + ROWS_PER_BATCH)
                yield {name: found[name].read(file, piece) for name in kinds}

    described = [(n, replace(c, unit=units.get(n, c.unit))) for n, c in described]
    return described, read, stated


def _unit(item: Any) -> str | None:
    """Return the unit that the attributes of a data set or group state."""
    return _text(item.attrs.get("unit", item.attrs.get("units")) or "").strip() or None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def open_fits(path: Path, part: str) -> Opened:
    """Open a table (binary or ASCII) of a FITS file, mapped into memory if not packed.

    ``part`` is its name, or its number as in CFITSIO: 0 is the primary HDU.
    """
    with (
        _seekable(path) as held,
        fits.open(held, memmap=held is path, character_as_bytes=True) as file,
    ):
        kinds = fits.BinTableHDU | fits.TableHDU
        tables = {f"{n}": hdu for n, hdu in enumerate(file) if isinstance(hdu, kinds)}
        hdu: Any = _chosen(path, part, tables, "only images")
        refuse_duplicates(path, hdu.columns.names)
        options = {"mask_invalid": False, "unit_parse_strict": "silent"}
        table = Table.read(hdu, format="fits", **options)
        first: Any = file[0]
        if not first.header["NAXIS"]:
            # Without an image it describes the whole file.
            table.meta = {**first.header, **table.meta}
        for column in hdu.columns:
            held = table.columns.get(column.name)
            if column.null is not None and isinstance(held, MaskedColumn):
                # TNULL is of the stored integers; astropy looks for it in the scaled.
                scale, zero = column.bscale or 1, column.bzero or 0
                found = np.ma.getdata(table[column.name])
                table[column.name].mask = found == column.null * scale + zero
        return from_astropy(table)


def open_votable(path: Path, part: str) -> Opened:
    """Parse a table of a VOTable; ``part`` is its name or its number from 1."""
    with unpacked(path) as file:
        whole = parse(file)
    found = {f"{n}": table for n, table in enumerate(whole.iter_tables(), 1)}
    tables = {n: table for n, table in found.items() if not table.is_empty()}
    table = _chosen(path, part, tables, "no rows")
    refuse_duplicates(path, [field.name for field in table.fields])
    systems = {
        one.ID: frames.named(one.system, one.equinox, one.epoch).get("")
        for one in whole.iter_coosys()
    }
    known = ((field.name, systems.get(field.ref)) for field in table.fields)
    stated = {name: system for name, system in known if system}
    apart = {one.text: one.frame for one in systems.values() if one}
    if apart and not stated:
        # No field refers to a system: they must all be one.
        sole = next(iter(apart.values())) if len(apart) == 1 else None
        stated = {"": frames.Stated(" or ".join(apart), sole)}
    return *from_astropy(table.to_table(use_names_over_ids=True))[:2], stated


def _chosen(path: Path, part: str, tables: Mapping[str, Any], nothing: str) -> Any:
    """Return the table of a name or number, or the only one."""
    found = {
        n: table
        for n, table in tables.items()
        if part.upper() in ("", str(table.name).upper(), n)
    }
    if len(found) != 1:
        names = [f"{n} {each.name or ''}".strip() for n, each in tables.items()]
        # Answers of VizieR hold hundreds.
        held = ", ".join([*names[:10], *["..."][: len(names[10:])]])
        first = next((each.name or n for n, each in tables.items()), "")
        choice = f": choose one, e.g. '{path}[{first}]'" if first else ""
        wanted = f"no one table {part!r}, but " if part else ""
        raise InputError(
            f"{path} holds {wanted}{len(tables)} tables ({held or nothing}){choice}"
        )
    return next(iter(found.values()))


def from_astropy(table: Table) -> Opened:
    described, stated = [], frames.of_table(table)
    table = represent_mixins_as_columns(table)
    columns: Mapping[str, Any] = table.columns
    for name, column in columns.items():
        is_vector = column.ndim > 1 and column.shape[1:] != (1,)
        width = int(np.prod(column.shape[1:])) if is_vector else None
        unit = str(column.unit or "").strip() or None
        own = ColumnInfo(unit=unit, width=width, description=column.description or None)
        described.append((name, own))

    def plain(column: Any) -> np.ndarray:
        """Return a column as an array of native byte order, masked if necessary."""
        masked = np.ma.isMaskedArray(column)
        array = np.ma.asarray(column) if masked else np.array(column)
        if array.dtype.kind == "S":
            array = np.char.rstrip(np.char.decode(array, "utf-8"))
        if array.ndim > 1:
            array = array.reshape(len(array), -1)
            array = array[:, 0] if array.shape[1] == 1 else array
        return native(array)

    def read(kinds: Kinds) -> Batches:
        for start in range(0, len(table), ROWS_PER_BATCH):
            rows = slice(start, start + ROWS_PER_BATCH)
            yield {name: plain(table[name][rows]) for name in kinds}

    return described, read, stated


def refuse_duplicates(path: Path, names: Sequence[str]) -> None:
    """Raise `InputError` if a name occurs twice."""
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"{path} has more than one column {', '.join(map(repr, repeated))}: "
            f"rename or drop the others, or name one of several tables: {path}[TABLE]"
        )


def _of_header(lines: Sequence[str]) -> tuple[dict[str, str], frames.Frames]:
    """Return units and frames by column from astropy's YAML header of a table."""
    if not lines:
        return {}, {}
    header = get_header_from_yaml(lines)
    fields = header["datatype"]
    units = {item["name"]: item["unit"] for item in fields if "unit" in item}
    return units, frames.of_header(header)
