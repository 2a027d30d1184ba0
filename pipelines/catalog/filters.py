"""Row filters: arithmetic and comparisons on columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.base.errors import InputError

_EQUALITIES = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_COMPARISONS = {
    **_EQUALITIES,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
# Strings, and the signs that TOPCAT has for and, or, not.
_SIGNS = re.compile(r"'[^']*'|\"[^\"]*\"|&&?|\|\|?|!(?!=)")
_WORDS = {"&": " and ", "|": " or ", "!": " not "}
_SINGLE = re.compile(r"(?<![=<>!])=(?!=)")
_COLUMN = re.compile(r"\w+(\[\d+\])?")
MAX_LENGTH = 2000
MAX_DEPTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """An expression such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    strings, ``True`` and ``False``; ``+ - * / **``, comparisons, ``and or not``
    (or ``&& || !``) and ``abs()``. A row in which a column of the filter is missing
    does not pass.

    ``kinds`` says what each column is compared as: ``value``, ``string`` or
    ``boolean``.
    """

    text: str
    tree: ast.expr
    kinds: dict[str, str]

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        with np.errstate(all="ignore"):
            evaluation = _Evaluation(self.text, columns)
            passed = np.array(evaluation.logical(self.tree), dtype=bool)
        for name, column in columns.items():
            if self.kinds[name] == "string":
                passed &= np.array([text is not None for text in column])
            else:
                passed &= ~np.isnan(column)
        return passed


def parse_filter(text: str) -> RowFilter:
    """Parse a filter.

    Raises
    ------
    InputError
        If the expression is not of the forms that `RowFilter` names, compares no
        column, or compares one column with both text and numbers.
    """
    if len(text) > MAX_LENGTH:
        raise InputError(f"the filter has {len(text)} characters, at most {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(_in_words(text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "; equality is ==, e.g. band == 'G'" if _SINGLE.search(text) else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"cannot read the filter {text!r}: {why}{hint}") from error
    if _depth(tree) > MAX_DEPTH:
        raise InputError(f"the filter {text[:80]!r}... is nested too deeply")
    # On columns without rows, everything is refused that is no filter.
    trial = _Evaluation(text, defaultdict(lambda: np.empty(0)))
    with np.errstate(all="ignore"):
        trial.logical(tree)
    if not trial.kinds:
        raise InputError(f"the filter {text!r} names no column")
    return RowFilter(text=text, tree=tree, kinds=trial.kinds)


def _in_words(text: str) -> str:
    """The signs ``&``, ``|`` and ``!``, single or double, as Python's words."""
    return _SIGNS.sub(lambda found: _WORDS.get(found[0][0], found[0]), text)


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


@dataclass(slots=True)
class _Evaluation:
    """The value of an expression; whatever is no part of a filter is refused."""

    text: str
    columns: Mapping[str, np.ndarray]
    kinds: dict[str, str] = field(default_factory=dict)

    def logical(self, node: ast.expr) -> Any:
        match node:
            case ast.BoolOp(op, values):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return reduce(join, [self.logical(value) for value in values])
            case ast.UnaryOp(ast.Not(), inner):
                return np.logical_not(self.logical(inner))
            case ast.Compare(left, ops, others):
                sides = [left, *others]
                kind = _kind_of(sides)
                allowed = _COMPARISONS if kind == "value" else _EQUALITIES
                if all(type(op) in allowed for op in ops):
                    pairs = pairwise([self.value(side, kind) for side in sides])
                    links = [allowed[type(op)](*pair) for op, pair in zip(ops, pairs)]
                    return reduce(np.logical_and, [np.asarray(x, bool) for x in links])
        raise self._refused(node)

    def value(self, node: ast.expr, kind: str) -> Any:
        name, numeric = ast.unparse(node), kind == "value"
        match node:
            case ast.Name() | ast.Subscript() if _COLUMN.fullmatch(name):
                if self.kinds.setdefault(name, kind) != kind:
                    raise InputError(
                        f"the filter {self.text!r} compares {name!r} both as "
                        f"{self.kinds[name]} and as {kind}"
                    )
                return self.columns[name]
            case ast.Constant(str() as text) if kind == "string":
                return text
            case ast.Constant(int() | float() as number) if kind != "string":
                # Floats throughout: an integer power of Python could fill the memory.
                if abs(number) <= 1e308:
                    return np.float64(number)
            case ast.BinOp(left, op, right) if numeric and type(op) in _ARITHMETIC:
                sides = (self.value(side, kind) for side in (left, right))
                return _ARITHMETIC[type(op)](*sides)
            case ast.UnaryOp(ast.USub() | ast.UAdd() as op, inner) if numeric:
                value = self.value(inner, kind)
                return -value if isinstance(op, ast.USub) else value
            case ast.Call(ast.Name("abs"), [inner], []) if numeric:
                return np.abs(self.value(inner, kind))
        raise self._refused(node)

    def _refused(self, node: ast.AST) -> InputError:
        return InputError(
            f"{ast.unparse(node)!r} in the filter {self.text!r} is not allowed: "
            "compare columns with numbers or quoted text, joined by and, or, not"
        )


def _kind_of(sides: list[ast.expr]) -> str:
    types = {type(side.value) for side in sides if isinstance(side, ast.Constant)}
    return "string" if str in types else "boolean" if bool in types else "value"
