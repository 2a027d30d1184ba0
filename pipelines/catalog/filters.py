"""Row filters: arithmetic and comparisons on columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from pipelines.base.errors import InputError

_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_SIGNS: dict[type, Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: np.array}
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SINGLE = re.compile(r"(?<![=<>!])=(?!=)")
_COLUMN = re.compile(r"\w+(\[\d+\])?")
MAX_LENGTH = 2000
MAX_DEPTH = 60

_Evaluate = Callable[[Mapping[str, np.ndarray]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFilter:
    """An expression such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    strings, ``True`` and ``False``; ``+ - * / **``, comparisons, ``and or not`` and
    ``abs()``. A row in which a column of the filter is missing does not pass.

    Parameters
    ----------
    text
        The expression.
    kinds
        Column to what it is compared as: ``value``, ``string`` or ``boolean``.
    evaluate
        From columns of shape ``(n,)`` to which rows fulfil it.
    """

    text: str
    kinds: dict[str, str]
    evaluate: _Evaluate

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_filter, (self.text,)

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        with np.errstate(all="ignore"):
            passed = np.array(self.evaluate(columns), dtype=bool)
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
    compiler = _Compiler(text)
    evaluate = compiler.logical(tree)
    if not compiler.kinds:
        raise InputError(f"the filter {text!r} names no column")
    return RowFilter(text=text, kinds=compiler.kinds, evaluate=evaluate)


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


@dataclass(slots=True)
class _Compiler:
    """From a syntax tree to functions of the columns; whatever else is refused."""

    text: str
    kinds: dict[str, str] = field(default_factory=dict)

    def logical(self, node: ast.expr) -> _Evaluate:
        if isinstance(node, ast.BoolOp):
            join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            parts = [self.logical(part) for part in node.values]
            return lambda columns: join.reduce([part(columns) for part in parts])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.logical(node.operand)
            return lambda columns: np.logical_not(inner(columns))
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        raise self._refused(node)

    def _comparison(self, node: ast.Compare) -> _Evaluate:
        sides = [node.left, *node.comparators]
        types = {type(side.value) for side in sides if isinstance(side, ast.Constant)}
        kind = "string" if str in types else "boolean" if bool in types else "value"
        allowed = _COMPARISONS if kind == "value" else (ast.Eq, ast.NotEq)
        if not all(type(op) in allowed for op in node.ops):
            raise self._refused(node)
        compare = [_COMPARISONS[type(op)] for op in node.ops]
        values = [self._value(side, kind) for side in sides]

        def evaluate(columns: Mapping[str, np.ndarray]) -> Any:
            pairs = pairwise(value(columns) for value in values)
            links = [each(left, right) for each, (left, right) in zip(compare, pairs)]
            return np.logical_and.reduce([np.asarray(link, bool) for link in links])

        return evaluate

    def _value(self, node: ast.expr, kind: str) -> _Evaluate:
        name = ast.unparse(node)
        if isinstance(node, ast.Name | ast.Subscript) and _COLUMN.fullmatch(name):
            if self.kinds.setdefault(name, kind) != kind:
                raise InputError(
                    f"the filter {self.text!r} compares {name!r} both as "
                    f"{self.kinds[name]} and as {kind}"
                )
            return lambda columns: columns[name]
        if isinstance(node, ast.Constant):
            value = self._constant(node, kind)
            return lambda _: value
        if kind != "value":
            raise self._refused(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            combine = _ARITHMETIC[type(node.op)]
            left, right = (self._value(side, kind) for side in (node.left, node.right))
            return lambda columns: combine(left(columns), right(columns))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            change, inner = _SIGNS[type(node.op)], self._value(node.operand, kind)
            return lambda columns: change(inner(columns))
        if isinstance(node, ast.Call) and (
            (ast.unparse(node.func), len(node.args), node.keywords) == ("abs", 1, [])
        ):
            inner = self._value(node.args[0], kind)
            return lambda columns: np.abs(inner(columns))
        raise self._refused(node)

    def _constant(self, node: ast.Constant, kind: str) -> Any:
        if kind == "string" and isinstance(node.value, str):
            return node.value
        if kind == "string" or not isinstance(node.value, int | float):
            raise self._refused(node)
        try:
            # Floats throughout: an integer power of Python could fill the memory.
            return np.float64(node.value)
        except OverflowError:
            raise self._refused(node) from None

    def _refused(self, node: ast.AST) -> InputError:
        return InputError(
            f"{ast.unparse(node)!r} in the filter {self.text!r} is not allowed: "
            "compare columns with numbers or quoted text, joined by and, or, not"
        )
