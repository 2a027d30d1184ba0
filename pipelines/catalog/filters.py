"""Row filters: one expression on columns, translated to SQL and run by DuckDB."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.base.errors import InputError
from pipelines.catalog.tables import to_arrow

_EQUALITIES = {ast.Eq: "=", ast.NotEq: "<>"}
_COMPARISONS = {**_EQUALITIES, ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_ARITHMETIC = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
# Strings, and the signs that TOPCAT has for and, or, not.
_SIGNS = re.compile(r"'[^']*'|\"[^\"]*\"|&&?|\|\|?|!(?!=)")
_WORDS = {"&": " and ", "|": " or ", "!": " not "}
_SINGLE_EQUALS = re.compile(r"(?<![=<>!])=(?!=)")
_COLUMN = re.compile(r"\w+(\[\d+\])?")
_MAX_LENGTH = 2000
_MAX_DEPTH = 60


@dataclass(slots=True)
class RowFilter:
    """An expression such as ``ruwe < 1.4 and abs(b) > 5 or flag == '0000'``.

    Columns by name (``name[3]`` for one of a two-dimensional column), numbers,
    strings, ``True`` and ``False``; ``+ - * / **``, comparisons, ``and or not``
    (or ``&& || !``) and ``abs()``. Numbers are float64 and compare as in IEEE 754. A
    row in which a column of the filter is missing does not pass.

    ``kinds`` states as which kind each column is compared: ``value``, ``string`` or
    ``boolean``. In ``sql`` the columns are ``c0, c1, ...`` in the order of ``kinds``
    and the constants are parameters, so that no text of the user is executed.
    """

    text: str
    sql: str = ""
    kinds: dict[str, str] = field(default_factory=dict)
    constants: dict[str, float | str] = field(default_factory=dict)

    def passes(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows pass, shape ``(n,)``, from columns of shape ``(n,)``.

        Raises
        ------
        InputError
            If DuckDB cannot run the expression on these rows.
        """
        batch = {f"c{i}": to_arrow(columns[name]) for i, name in enumerate(self.kinds)}
        rows = len(next(iter(batch.values())))
        batch["row"] = pa.array(np.arange(rows))
        query = f"SELECT row FROM batch WHERE {self.sql} ORDER BY row"
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute("SET enable_external_access = false")
            connection.register("batch", pa.table(batch))
            try:
                found = connection.execute(query, self.constants).fetchnumpy()
            except duckdb.Error as error:
                raise InputError(
                    f"the filter {self.text!r} cannot be run: {error}"
                ) from error
        passed = np.zeros(rows, dtype=bool)
        passed[found["row"]] = True
        return passed

    def _logical(self, node: ast.expr) -> str:
        match node:
            case ast.BoolOp(op, values):
                word = " AND " if isinstance(op, ast.And) else " OR "
                return f"({word.join(self._logical(value) for value in values)})"
            case ast.UnaryOp(ast.Not(), inner):
                return f"(NOT {self._logical(inner)})"
            case ast.Compare(left, ops, others):
                sides = [left, *others]
                constants = [s.value for s in sides if isinstance(s, ast.Constant)]
                types = set(map(type, constants))
                kind = (
                    "string"
                    if str in types
                    else "boolean"
                    if bool in types
                    else "value"
                )
                allowed = _COMPARISONS if kind == "value" else _EQUALITIES
                if all(type(op) in allowed for op in ops):
                    values = pairwise([self._value(side, kind) for side in sides])
                    links = [
                        # SQL takes NaN for the largest number, and equal to itself.
                        f"coalesce({a} {allowed[type(op)]} {b}, "
                        f"{isinstance(op, ast.NotEq)})"
                        for op, (a, b) in zip(ops, values)
                    ]
                    return f"({' AND '.join(links)})"
        raise self._refused(node)

    def _value(self, node: ast.expr, kind: str) -> str:
        """Return a side of a comparison; NULL stands for NaN."""
        sql = self._term(node, kind)
        return sql if kind == "string" else f"nullif({sql}, 'nan'::DOUBLE)"

    def _term(self, node: ast.expr, kind: str) -> str:
        name, numeric = ast.unparse(node), kind == "value"
        match node:
            case ast.Name() | ast.Subscript() if _COLUMN.fullmatch(name):
                if self.kinds.setdefault(name, kind) != kind:
                    raise InputError(
                        f"the filter {self.text!r} compares {name!r} both as "
                        f"{self.kinds[name]} and as {kind}"
                    )
                return f"c{list(self.kinds).index(name)}"
            case ast.Constant(str() as text) if kind == "string":
                return self._constant(text)
            case ast.Constant(int() | float() as number) if kind != "string":
                if abs(number) <= 1e308:
                    return self._constant(float(number))
            case ast.BinOp(left, op, right) if numeric and type(op) in _ARITHMETIC:
                a, b = self._term(left, kind), self._term(right, kind)
                return f"({a} {_ARITHMETIC[type(op)]} {b})"
            case ast.UnaryOp(ast.USub() | ast.UAdd() as op, inner) if numeric:
                sign = "-" if isinstance(op, ast.USub) else "+"
                return f"({sign} {self._term(inner, kind)})"
            case ast.Call(ast.Name("abs"), [inner], []) if numeric:
                return f"abs({self._term(inner, kind)})"
        raise self._refused(node)

    def _constant(self, value: float | str) -> str:
        name = f"p{len(self.constants)}"
        self.constants[name] = value
        return f"${name}"

    def _refused(self, node: ast.AST) -> InputError:
        return InputError(
            f"{ast.unparse(node)!r} in the filter {self.text!r} is not allowed: "
            "compare columns with numbers or quoted text, joined by and, or, not"
        )


def parse_filter(text: str) -> RowFilter:
    """Parse a filter.

    Raises
    ------
    InputError
        If the expression is not of the forms that `RowFilter` names, compares no
        column, or compares one column with both text and numbers.
    """
    if len(text) > _MAX_LENGTH:
        raise InputError(
            f"the filter has {len(text)} characters, at most {_MAX_LENGTH}"
        )
    in_words = _SIGNS.sub(lambda found: _WORDS.get(found[0][0], found[0]), text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(in_words.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = (
            "; equality is ==, e.g. band == 'G'" if _SINGLE_EQUALS.search(text) else ""
        )
        why = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"cannot read the filter {text!r}: {why}{hint}") from error
    level, depth = [tree], 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    if depth > _MAX_DEPTH:
        raise InputError(f"the filter {text[:80]!r}... is nested too deeply")
    found = RowFilter(text)
    clauses = [found._logical(tree)]
    if not found.kinds:
        raise InputError(f"the filter {text!r} names no column")
    for number, kind in enumerate(found.kinds.values()):
        present = (
            f"c{number} IS NOT NULL" if kind == "string" else f"NOT isnan(c{number})"
        )
        clauses.append(present)
    found.sql = " AND ".join(clauses)
    return found
