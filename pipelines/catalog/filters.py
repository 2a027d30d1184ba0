"""Row filters: expressions on columns in Python's syntax, never run as code."""

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
_ORDER = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_ARITHMETIC = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
# Strings, and TOPCAT's signs for and, or, not.
_SIGNS = re.compile(r"'[^']*'|\"[^\"]*\"|&&?|\|\|?|!(?!=)")
_WORDS = {"&": " and ", "|": " or ", "!": " not "}
_SINGLE_EQUALS = re.compile(r"(?<![=<>!])=(?!=)")
_COLUMN = re.compile(r"\w+(\[\d+\])?")


@dataclass(slots=True)
class RowFilter:
    """An expression such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    strings, ``True`` and ``False``; ``+ - * / **``, comparisons, ``and or not``
    (or ``&& || !``) and ``abs()``. Numbers are float64 and compare as in IEEE 754.
    Rows with a missing value in a column of the filter fail.

    ``kinds`` maps each column to ``value``, ``string`` or ``boolean``.

    Raises
    ------
    InputError
        If the expression has another form, names no column, or compares a column with
        both text and numbers.
    """

    text: str
    kinds: dict[str, str] = field(default_factory=dict, init=False)
    _tree: ast.expr = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._tree = _parse(self.text)

        def note(name: str, kind: str) -> np.ndarray:
            if self.kinds.setdefault(name, kind) != kind:
                raise InputError(
                    f"the filter {self.text!r} compares {name!r} both as "
                    f"{self.kinds[name]} and as {kind}"
                )
            return np.empty(0, object if kind == "string" else float)

        # Evaluation on zero rows checks the form and finds the columns.
        try:
            with np.errstate(all="ignore"):
                self._logical(self._tree, note)
        except RecursionError as error:
            raise InputError(f"the filter {self.text[:80]!r}... is too long") from error
        if not self.kinds:
            raise InputError(
                f"the filter {self.text!r} names no column: compare at least one"
            )

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the rows that pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        with np.errstate(all="ignore"):
            passed = self._logical(self._tree, lambda name, _: columns[name])
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
                types = {type(n.value) for n in nodes if isinstance(n, ast.Constant)}
                kind = "boolean" if bool in types else "value"
                kind = "string" if str in types else kind
                allowed = _EQUALITIES | _ORDER if kind == "value" else _EQUALITIES
                if all(type(op) in allowed for op in ops):
                    sides = pairwise([self._term(each, kind, column) for each in nodes])
                    held = [allowed[type(op)](a, b) for op, (a, b) in zip(ops, sides)]
                    return reduce(np.logical_and, held)
        raise self._refused(node)

    def _term(self, node: ast.expr, kind: str, column: Column) -> Any:
        name, numeric = ast.unparse(node), kind == "value"
        match node:
            case ast.Name() | ast.Subscript() if _COLUMN.fullmatch(name):
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
            case ast.Call(ast.Name("abs"), [inner], []) if numeric:
                return np.abs(self._term(inner, kind, column))
        raise self._refused(node)

    def _refused(self, node: ast.AST) -> InputError:
        return InputError(
            f"{ast.unparse(node)!r} in the filter {self.text!r} is not allowed: "
            "compare columns with numbers or quoted text, joined by and, or, not"
        )


def _parse(text: str) -> ast.expr:
    """Return the tree of an expression."""
    in_words = _SIGNS.sub(lambda found: _WORDS.get(found[0][0], found[0]), text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(in_words.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        equals = _SINGLE_EQUALS.search(text)
        hint = "; equality is ==, e.g. band == 'G'" if equals else ""
        raise InputError(f"cannot read the filter {text!r}: {error}{hint}") from error
