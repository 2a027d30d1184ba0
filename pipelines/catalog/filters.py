"""Row filters: arithmetic and comparisons on columns, parsed and never executed."""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SINGLE = re.compile(r"(?<![=<>!])=(?!=)")
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
    text
        The expression.
    kinds
        Column to what it is compared as: ``value``, ``string`` or ``boolean``.
    """

    text: str
    kinds: dict[str, str]
    tree: ast.expr

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows pass, shape ``(n,)``, from columns of shape ``(n,)``."""
        with np.errstate(all="ignore"):
            result = np.asarray(_evaluate(self.tree, columns))
        complete = np.ones(len(next(iter(columns.values()))), dtype=bool)
        for name, kind in self.kinds.items():
            if kind == "string":
                complete &= np.array([text is not None for text in columns[name]])
            else:
                complete &= ~np.isnan(columns[name])
        return complete & result


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
    kinds: dict[str, str] = {}
    _check_logical(tree, text, kinds)
    if not kinds:
        raise InputError(f"the filter {text!r} names no column")
    return RowFilter(text=text, kinds=kinds, tree=tree)


def _depth(tree: ast.AST) -> int:
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


def _refuse(node: ast.AST, text: str) -> InputError:
    piece = ast.unparse(node)
    return InputError(
        f"{piece!r} in the filter {text!r} is not allowed: compare columns with "
        "numbers or quoted text, joined by and, or, not"
    )


def _check_logical(node: ast.expr, text: str, kinds: dict[str, str]) -> None:
    if isinstance(node, ast.BoolOp):
        for part in node.values:
            _check_logical(part, text, kinds)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _check_logical(node.operand, text, kinds)
    elif isinstance(node, ast.Compare):
        _check_comparison(node, text, kinds)
    else:
        raise _refuse(node, text)


def _check_comparison(node: ast.Compare, text: str, kinds: dict[str, str]) -> None:
    sides = [node.left, *node.comparators]
    constants = [s.value for s in sides if isinstance(s, ast.Constant)]
    kind = "value"
    if any(isinstance(value, str) for value in constants):
        kind = "string"
    elif any(isinstance(value, bool) for value in constants):
        kind = "boolean"
    if not all(type(op) in _COMPARISONS for op in node.ops):
        raise _refuse(node, text)
    if kind != "value" and not all(
        isinstance(op, ast.Eq | ast.NotEq) for op in node.ops
    ):
        raise _refuse(node, text)
    for side in sides:
        _check_value(side, text, kinds, kind)


def _check_value(node: ast.expr, text: str, kinds: dict[str, str], kind: str) -> None:
    name = _column(node)
    if name is not None:
        if kinds.setdefault(name, kind) != kind:
            raise InputError(
                f"the filter {text!r} compares {name!r} both as {kinds[name]} and as "
                f"{kind}"
            )
        return
    if isinstance(node, ast.Constant) and (
        isinstance(node.value, str) == (kind == "string")
        and isinstance(node.value, int | float | str)
    ):
        return
    if kind != "value":
        raise _refuse(node, text)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        _check_value(node.left, text, kinds, kind)
        _check_value(node.right, text, kinds, kind)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        _check_value(node.operand, text, kinds, kind)
    elif _is_abs(node):
        _check_value(node.args[0], text, kinds, kind)  # type: ignore[attr-defined]
    else:
        raise _refuse(node, text)


def _is_abs(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "abs"
        and len(node.args) == 1
        and not node.keywords
    )


def _column(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
    ):
        return f"{node.value.id}[{node.slice.value}]"
    return None


def _evaluate(node: ast.expr, columns: Mapping[str, np.ndarray]) -> Any:
    name = _column(node)
    if name is not None:
        return columns[name]
    if isinstance(node, ast.Constant):
        # Floats throughout: an integer power of Python could fill the memory.
        value: Any = node.value
        return value if isinstance(value, str) else np.float64(value)
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce([_evaluate(part, columns) for part in node.values])
    if isinstance(node, ast.UnaryOp):
        value = _evaluate(node.operand, columns)
        if isinstance(node.op, ast.Not):
            return np.logical_not(value)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = (_evaluate(side, columns) for side in (node.left, node.right))
        return _ARITHMETIC[type(node.op)](left, right)
    if isinstance(node, ast.Call):
        return np.abs(_evaluate(node.args[0], columns))
    assert isinstance(node, ast.Compare)
    sides = [_evaluate(side, columns) for side in (node.left, *node.comparators)]
    links = [
        np.asarray(_COMPARISONS[type(op)](left, right), dtype=bool)
        for op, left, right in zip(node.ops, sides, sides[1:])
    ]
    return np.logical_and.reduce(links)
