"""Row filters: arithmetic and comparisons on columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.base.errors import InputError

_EQUALITIES: dict[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_COMPARISONS: dict[type, Callable[..., Any]] = {
    **_EQUALITIES,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_OPERATORS: dict[type, Callable[..., Any]] = {
    **_COMPARISONS,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: np.logical_not,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
}
_SINGLE = re.compile(r"(?<![=<>!])=(?!=)")
_COLUMN = re.compile(r"\w+(\[\d+\])?")
MAX_LENGTH = 2000
MAX_DEPTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """An expression such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    strings, ``True`` and ``False``; ``+ - * / **``, comparisons, ``and or not`` and
    ``abs()``. A row in which a column of the filter is missing does not pass.

    Parameters
    ----------
    tree
        The expression, of these forms only.
    kinds
        Column to what it is compared as: ``value``, ``string`` or ``boolean``.
    """

    tree: ast.expr
    kinds: dict[str, str]

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        with np.errstate(all="ignore"):
            passed = np.array(_evaluate(self.tree, columns), dtype=bool)
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
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "; equality is ==, e.g. band == 'G'" if _SINGLE.search(text) else ""
        why = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"cannot read the filter {text!r}: {why}{hint}") from error
    if _depth(tree) > MAX_DEPTH:
        raise InputError(f"the filter {text[:80]!r}... is nested too deeply")
    checker = _Checker(text)
    checker.check_logical(tree)
    if not checker.kinds:
        raise InputError(f"the filter {text!r} names no column")
    return RowFilter(tree=tree, kinds=checker.kinds)


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _evaluate(node: ast.AST, columns: Mapping[str, np.ndarray]) -> Any:
    """The value of an expression that was checked; numbers are float64 throughout."""

    def value(part: ast.AST) -> Any:
        return _evaluate(part, columns)

    match node:
        case ast.BoolOp(op, values):
            return reduce(_OPERATORS[type(op)], map(value, values))
        case ast.Compare(left, ops, others):
            sides = pairwise(map(value, (left, *others)))
            links = [_OPERATORS[type(op)](a, b) for op, (a, b) in zip(ops, sides)]
            return reduce(np.logical_and, [np.asarray(link, bool) for link in links])
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](value(left), value(right))
        case ast.UnaryOp(op, operand):
            return _OPERATORS[type(op)](value(operand))
        case ast.Call(args=[argument]):
            return np.abs(value(argument))
        case ast.Constant(constant):
            # An integer power of Python could fill the memory.
            return constant if isinstance(constant, str) else np.float64(constant)
    return columns[ast.unparse(node)]


@dataclass(slots=True)
class _Checker:
    """Notes what columns are compared as; refuses all that a filter is not."""

    text: str
    kinds: dict[str, str] = field(default_factory=dict)

    def check_logical(self, node: ast.expr) -> None:
        match node:
            case ast.BoolOp(values=values):
                for part in values:
                    self.check_logical(part)
            case ast.UnaryOp(ast.Not(), inner):
                self.check_logical(inner)
            case ast.Compare(left, ops, others):
                sides = [left, *others]
                kind = _kind(sides)
                allowed = _COMPARISONS if kind == "value" else _EQUALITIES
                if not all(type(op) in allowed for op in ops):
                    raise self._refused(node)
                for side in sides:
                    self._check_value(side, kind)
            case _:
                raise self._refused(node)

    def _check_value(self, node: ast.expr, kind: str) -> None:
        name = ast.unparse(node)
        match node:
            case ast.Name() | ast.Subscript() if _COLUMN.fullmatch(name):
                if self.kinds.setdefault(name, kind) != kind:
                    raise InputError(
                        f"the filter {self.text!r} compares {name!r} both as "
                        f"{self.kinds[name]} and as {kind}"
                    )
            case ast.Constant(str()) if kind == "string":
                pass
            case ast.Constant(int() | float() as number) if kind != "string":
                if abs(number) > 1e308:
                    raise self._refused(node)
            case ast.BinOp(left, op, right) if type(op) in _OPERATORS and (
                kind == "value"
            ):
                self._check_value(left, kind)
                self._check_value(right, kind)
            case ast.UnaryOp(ast.USub() | ast.UAdd(), inner) if kind == "value":
                self._check_value(inner, kind)
            case ast.Call(ast.Name("abs"), [inner], []) if kind == "value":
                self._check_value(inner, kind)
            case _:
                raise self._refused(node)

    def _refused(self, node: ast.AST) -> InputError:
        return InputError(
            f"{ast.unparse(node)!r} in the filter {self.text!r} is not allowed: "
            "compare columns with numbers or quoted text, joined by and, or, not"
        )


def _kind(sides: list[ast.expr]) -> str:
    types = {type(side.value) for side in sides if isinstance(side, ast.Constant)}
    return "string" if str in types else "boolean" if bool in types else "value"
