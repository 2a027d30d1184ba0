"""Expressions on columns in Python's syntax, never run as code."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.base.errors import InputError

Column = Callable[[str, str], np.ndarray]
"""Function from the name and kind of a column to its values."""

_EQUALITIES = {ast.Eq: np.equal, ast.NotEq: np.not_equal}
_ORDER = {ast.Lt: np.less, ast.LtE: np.less_equal}
_ORDER |= {ast.Gt: np.greater, ast.GtE: np.greater_equal}
_ARITHMETIC = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply}
_ARITHMETIC |= {ast.Div: np.divide, ast.Pow: np.power}
# Strings, names that need quotes elsewhere, and TOPCAT's signs for and, or, not.
_SIGNS = re.compile(
    r"'[^']*'|\"[^\"]*\"|`[^`]+`|(?<![\w\]])\[\w+/\w+\]|\bE\(\w+-\w+\)|&&?|\|\|?|!(?!=)"
)
_QUOTED = re.compile(r"_quoted(\d+)_")


@dataclass(slots=True)
class Expression:
    """Arithmetic of columns and numbers, such as ``plx + 0.03``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    ``+ - * / **``, brackets, ``abs()``, ``log10()`` and ``sqrt()``. Names that are not
    words need quotes or backticks, except ``[Fe/H]``, ``E(B-V)`` and the like.
    Numbers are float64. ``gaia_zero_point(phot_g_mean_mag, nu_eff_used_in_astrometry,
    pseudocolour, ecl_lat, astrometric_params_solved)`` is the parallaxes' zero point
    [mas] of Lindegren et al. 2021 (A&A 649, A4) by the package zero_point.

    ``kinds`` maps each column to its required kind, here ``value``.

    Raises `InputError` if the expression has another form, or names no column.
    """

    text: str
    kinds: dict[str, str] = field(default_factory=dict, init=False)
    _tree: ast.expr = field(init=False, repr=False)
    _quoted: list[str] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._tree = self._parse()

        def note(name: str, kind: str) -> np.ndarray:
            if self.kinds.setdefault(name, kind) != kind:
                raise InputError(
                    f"the filter {self.text!r} compares {name!r} both as "
                    f"{self.kinds[name]} and as {kind}"
                )
            return np.empty(0, object if kind == "string" else float)

        # Evaluation on zero rows checks the form and finds the columns.
        try:
            self.values(note)
        except RecursionError as error:
            raise InputError(f"the filter {self.text[:80]!r}... is too long") from error
        if not self.kinds:
            fault = f"the filter {self.text!r} names no column: compare at least one"
            raise InputError(fault)

    def values(self, column: Column) -> np.ndarray:
        """Return the values, shape ``(n,)``, from columns by name and kind."""
        with np.errstate(all="ignore"):
            return self._term(self._tree, "value", column)

    def _term(self, node: ast.expr, kind: str, column: Column) -> Any:
        name, numeric = ast.unparse(node), kind == "value"
        match node:
            case ast.Name() if quoted := self._name(node):
                return column(quoted, kind)
            case ast.Name() | ast.Subscript() if re.fullmatch(r"\w+(\[\d+\])?", name):
                return column(name, kind)
            case ast.Constant(str() as text) if kind == "string":
                return text
            case ast.Constant(int() | float() as number) if kind != "string":
                if abs(number) <= 1e308:
                    # Python's own numbers raise errors in place of infinity.
                    return np.float64(number)
            case ast.BinOp(left, op, right) if numeric and type(op) in _ARITHMETIC:
                sides = [self._term(each, kind, column) for each in (left, right)]
                return _ARITHMETIC[type(op)](*sides)
            case ast.UnaryOp(ast.USub() | ast.UAdd() as op, inner) if numeric:
                value = self._term(inner, kind, column)
                return -value if isinstance(op, ast.USub) else value
            case ast.Call(ast.Name(called), given, []) if numeric:
                function, count = _FUNCTIONS.get(called, (None, 0))
                if function is not None and len(given) == count:
                    return function(*(self._term(n, kind, column) for n in given))
        raise self._refused(node)

    def _name(self, node: ast.AST, sign: str = "") -> str:
        """Return a name in quotes, with ``sign`` only in these quotes; else empty."""
        found = _QUOTED.fullmatch(node.id) if isinstance(node, ast.Name) else None
        written = self._quoted[int(found[1])] if found else ""
        return written.strip('`"') if written.startswith(sign) else ""

    def _refused(self, node: ast.AST) -> InputError:
        shown = _QUOTED.sub(lambda m: self._quoted[int(m[1])], ast.unparse(node))
        return InputError(
            f"{shown!r} in the filter {self.text!r} is not allowed: compare columns "
            "with numbers or quoted text, joined by and, or, not"
        )

    def _parse(self) -> ast.expr:
        """Return the tree of the expression, with numbers in place of quoted names."""

        def plain(found: re.Match[str]) -> str:
            sign = found[0]
            if sign[0] in "&|!'":
                return {"&": " and ", "|": " or ", "!": " not "}.get(sign[0], sign)
            self._quoted.append(sign)
            return f"_quoted{len(self._quoted) - 1}_"

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                words = _SIGNS.sub(plain, _QUOTED.sub("", self.text))
                return ast.parse(words.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            equals = re.search(r"(?<![=<>!])=(?!=)", self.text)
            hint = "; equality is ==, e.g. band == 'G'" if equals else ""
            fault = f"cannot read the filter {self.text!r}: {error}{hint}"
            raise InputError(fault) from error


@dataclass(slots=True)
class RowFilter(Expression):
    """A condition such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    `Expression`, strings, ``True`` and ``False``; comparisons, ``and or not`` (or
    ``&& || !``). Numbers compare as in IEEE 754. Rows with a missing value in a column
    of the filter fail. ``kinds`` are ``value``, ``string`` or ``boolean``.

    Raises `InputError` if it has another form, names no column, or compares a column
    with both text and numbers.
    """

    def values(self, column: Column) -> np.ndarray:
        """Return true where the condition holds, shape ``(n,)``."""
        with np.errstate(all="ignore"):
            return self._logical(self._tree, column)

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rows that pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        passed = self.values(lambda name, _: columns[name])
        for name, kind in self.kinds.items():
            column = columns[name]
            if kind == "string":
                passed &= np.array([text is not None for text in column], dtype=bool)
            else:
                passed &= ~np.isnan(column)
        return passed

    def _logical(self, node: ast.expr, column: Column) -> Any:
        match node:
            case ast.BoolOp(op, nodes):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return reduce(join, [self._logical(each, column) for each in nodes])
            case ast.UnaryOp(ast.Not(), inner):
                return np.logical_not(self._logical(inner, column))
            case ast.Compare(left, ops, others):
                nodes = [left, *others]
                equal = all(type(op) in _EQUALITIES for op in ops)
                words = [node for node in nodes if self._name(node, '"')]
                if equal and len(words) == 1 and len(nodes) == 2:
                    # In flag == "0000", unlike "my flag" == '0000', it is text.
                    other = nodes[words[0] is left]
                    if isinstance(other, ast.Name | ast.Subscript):
                        text = ast.Constant(self._name(words[0]))
                        nodes = [text if node is words[0] else node for node in nodes]
                types = {type(n.value) for n in nodes if isinstance(n, ast.Constant)}
                kind = "boolean" if bool in types else "value"
                kind = "string" if str in types else kind
                allowed = _EQUALITIES | _ORDER if kind == "value" else _EQUALITIES
                if all(type(op) in allowed for op in ops):
                    sides = pairwise([self._term(each, kind, column) for each in nodes])
                    held = [allowed[type(op)](a, b) for op, (a, b) in zip(ops, sides)]
                    return reduce(np.logical_and, held)
        raise self._refused(node)


def _zero_point(*columns: np.ndarray) -> np.ndarray:
    """Return the zero point [mas] by magnitude, colours, latitude and solution."""
    try:
        from zero_point import zpt  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "gaia_zero_point needs the package zero_point: pip install "
            "gaiadr3-zeropoint"
        ) from None
    g, nu_eff, pseudocolour, latitude, solved = np.broadcast_arrays(*columns)
    known = np.isin(solved, (31, 95))
    # A five-parameter solution has no pseudocolour, a six-parameter one no other.
    nu_eff, pseudocolour = np.nan_to_num(nu_eff), np.nan_to_num(pseudocolour)
    found = np.full(len(g), np.nan)
    if known.any():
        zpt.load_tables()
        given = (g, nu_eff, pseudocolour, latitude, solved.astype(int))
        found[known] = zpt.get_zpt(*(c[known] for c in given), _warnings=False)
    return found


# Functions by name, with the number of their arguments.
_FUNCTIONS: dict[str, tuple[Callable[..., np.ndarray], int]] = {
    "abs": (np.abs, 1),
    "log10": (np.log10, 1),
    "sqrt": (np.sqrt, 1),
    "gaia_zero_point": (_zero_point, 5),
}
