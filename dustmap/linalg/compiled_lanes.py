"""Several columns in one register: a vector type for compiled loops.

A row's sum over b interleaved columns is b additions per entry. Written as a loop or as
b variables it is compiled to b scalar instructions (the compiler's straight-line
vectoriser is off by default); as one value of vector type it is one, and eight columns
cost as much as one: 1.0 ns per entry against 2.0 ns. The width and the precision of a
sum come from the type of a tuple of zeros, so that loops need no templates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

_CONTRACT = ("contract",)


def _operation(function: Callable) -> Callable[..., Any]:
    """For use in compiled code, where the first parameter is not passed."""
    return intrinsic(function)


class Lanes(types.Type):
    """``width`` floating-point numbers in one value."""

    def __init__(self, scalar: types.Float, width: int) -> None:
        self.scalar = scalar
        self.width = width
        super().__init__(f"Lanes({scalar}, {width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type) -> None:
        scalar = dmm.lookup(fe_type.scalar).get_value_type()
        super().__init__(dmm, fe_type, ir.VectorType(scalar, fe_type.width))


def _converted(builder, value, to):
    """A scalar or vector in the precision of the type ``to``."""
    if value.type == to:
        return value
    element = to.element if isinstance(to, ir.VectorType) else to
    wider = isinstance(element, ir.DoubleType)
    return builder.fpext(value, to) if wider else builder.fptrunc(value, to)


def _spread(builder, scalar, to):
    """A vector of type ``to`` with every lane equal to the scalar."""
    scalar = _converted(builder, scalar, to.element)
    lane = ir.Constant(ir.IntType(32), 0)
    empty = ir.Constant(to, ir.Undefined)
    order = ir.Constant(ir.VectorType(ir.IntType(32), to.count), [0] * to.count)
    return builder.shuffle_vector(
        builder.insert_element(empty, scalar, lane), empty, order
    )


def _address(context, builder, array_type, array, row, width):
    """Where row ``row`` of a contiguous (n, width) array begins, and its alignment."""
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.gep(data, [builder.mul(row, ir.Constant(row.type, width))])
    vector = ir.VectorType(context.get_data_type(array_type.dtype), width)
    return builder.bitcast(start, vector.as_pointer()), array_type.dtype.bitwidth // 8


def _fused(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


@_operation
def zeros(typing, like):
    """Lanes of zeros, as many and as precise as the members of the tuple ``like``."""
    lanes = Lanes(like.dtype, like.count)

    def generate(context, builder, signature, arguments):
        return ir.Constant(context.get_value_type(lanes), [0.0] * lanes.width)

    return lanes(like), generate


@_operation
def load(typing, like, array, row):
    """Row ``row`` of an (n, width) array as lanes like those of ``like``."""
    lanes = Lanes(like.dtype, like.count)

    def generate(context, builder, signature, arguments):
        _, data, at = arguments
        place, align = _address(context, builder, array, data, at, lanes.width)
        value = builder.load(place, align=align)
        return _converted(builder, value, context.get_value_type(lanes))

    return lanes(like, array, types.uint64), generate


@_operation
def store(typing, lanes, array, row):
    """Write lanes to row ``row`` of an (n, width) array."""

    def generate(context, builder, signature, arguments):
        value, data, at = arguments
        place, align = _address(context, builder, array, data, at, lanes.width)
        value = _converted(builder, value, place.type.pointee)
        builder.store(value, place, align=align)
        return context.get_dummy_value()

    return types.void(lanes, array, types.uint64), generate


@_operation
def plus_row(typing, lanes, factor, array, row):
    """``lanes + factor * array[row]``."""

    def generate(context, builder, signature, arguments):
        total, scalar, data, at = arguments
        place, align = _address(context, builder, array, data, at, lanes.width)
        value = _converted(builder, builder.load(place, align=align), total.type)
        return _fused(builder, value, _spread(builder, scalar, total.type), total)

    return lanes(lanes, factor, array, types.uint64), generate


@_operation
def plus(typing, left, right):
    """``left + right``."""

    def generate(context, builder, signature, arguments):
        return builder.fadd(*arguments)

    return left(left, right), generate


@_operation
def times(typing, lanes, factor):
    """``factor * lanes``."""

    def generate(context, builder, signature, arguments):
        value, scalar = arguments
        return builder.fmul(value, _spread(builder, scalar, value.type))

    return lanes(lanes, factor), generate


@_operation
def add_to_row(typing, array, row, factor, lanes):
    """``array[row] += factor * lanes``, in the precision of the array."""

    def generate(context, builder, signature, arguments):
        data, at, scalar, value = arguments
        place, align = _address(context, builder, array, data, at, lanes.width)
        vector = place.type.pointee
        value = _converted(builder, value, vector)
        factor_lanes = _spread(builder, scalar, vector)
        before = builder.load(place, align=align)
        builder.store(_fused(builder, value, factor_lanes, before), place, align=align)
        return context.get_dummy_value()

    return types.void(array, types.uint64, factor, lanes), generate
