"""Whitening on a torus that is shared out in slabs: no process holds a grid vector."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.slab_circulant import SlabCirculant
from dustmap.distributed.slab_fft import SlabFFT
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.grid import Torus
from dustmap.kernels import Kernel
from dustmap.whitening.torus import TorusReport, TorusWhitening, default_image_tolerance

# Lags at which the kernel is evaluated together, with some dozen numbers for each.
_TOGETHER = 2**18


class SlabTorusWhitening(TorusWhitening):
    """:class:`TorusWhitening` with refinement 1, of which every rank holds its planes.

    Vectors are those of this rank's slab, in C order, and every method is called by all
    ranks together. Cost per vector: one exchange there and one back.

    Parameters
    ----------
    kernel
        A kernel without periods; it is periodised here.
    torus
        Where ε lives.
    group
        The ranks.
    cuts
        Between which planes of the first axis ranks hold theirs; even if ``None``.
    dtype, device
        Of the products; spectra are computed in float64.
    image_tolerance
        As of :class:`TorusWhitening`.

    Raises
    ------
    ValueError
        If there are fewer planes than ranks, or the cuts do not share them all out.
    """

    def __init__(
        self,
        kernel: Kernel,
        torus: Torus,
        *,
        group: Group,
        cuts: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        image_tolerance: float | None = None,
    ) -> None:
        self.kernel = kernel
        self.torus = torus
        self.refinement = 1
        self.fine_shape = torus.shape
        self.dtype = dtype
        self.device = torch.device(device)
        self.image_tolerance = image_tolerance or default_image_tolerance(dtype)
        self.periodic = kernel.periodised(torus.periods, self.image_tolerance)
        self.slabs = (
            Slabs.even(torus.shape, group)
            if cuts is None
            else Slabs(shape=torus.shape, cuts=cuts, group=group)
        )
        self.space = SlabSpace(self.slabs)
        column, wrap_error = self._column()
        fft = SlabFFT(self.slabs)
        circulant = SlabCirculant.from_first_column(column.to(self.device), fft)
        del column
        dropped = circulant.dropped_modes()
        self.report = TorusReport(
            shape=torus.shape,
            dropped_modes=dropped,
            dropped_fine_modes=dropped,
            wrap_error=wrap_error,
        )
        self._root = circulant.power(0.5).to(dtype, self.device)
        self._inverse_root = circulant.power(-0.5).to(dtype, self.device)

    @property
    def size(self) -> int:
        """Length of this rank's part of ε."""
        return self.slabs.size

    @property
    def fine_size(self) -> int:
        """Length of this rank's part of the field."""
        return self.slabs.size

    def prior_draw(
        self, generator: torch.Generator, count: int = 1
    ) -> tuple[Float[Tensor, "s n"], Float[Tensor, "s n"]]:
        """Draws of the field, and their ε; the same for any number of ranks."""
        white = self.space.normal(count, self.size, generator, self.dtype)
        field = self._root.matvec(white.to(self.device))
        return field, self.whiten(field)

    def subsample(self, field: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
        return field

    def refined(self, refinement: int) -> SlabTorusWhitening:
        if refinement != 1:
            raise ValueError(
                "a grid in slabs has the refinement 1 only, got "
                f"{refinement}: take a finer grid, or one that every process holds"
            )
        return self

    def with_kernel(self, kernel: Kernel) -> SlabTorusWhitening:
        """The same ε (torus, slabs, precision) under another kernel."""
        return SlabTorusWhitening(
            kernel,
            self.torus,
            group=self.slabs.group,
            cuts=self.slabs.cuts,
            dtype=self.dtype,
            device=self.device,
            image_tolerance=self.image_tolerance,
        )

    def _column(self) -> tuple[Float[Tensor, " n"], float]:
        """``k`` at the lags of this rank's planes, and the wrap error of all of them.

        Kernels are even along every axis: the others are evaluated on one side.
        """
        column = torch.empty(self.slabs.own_shape, dtype=torch.float64)
        worst = torch.zeros(1, dtype=torch.float64)
        box = self.torus.grid.shape
        block = tuple(slice(0, n) for n in box[1:])
        for place, lags in self._lags():
            values = self.periodic(lags)
            for axis, n in enumerate(self.torus.shape[1:], start=1):
                mirrored = values.narrow(axis, 1, (n - 1) // 2).flip(axis)
                values = torch.cat([values, mirrored], dim=axis)
            column[place] = values
            inside = values[: max(0, box[0] - self.slabs.planes.start - place.start)]
            if len(inside):
                plain = self.kernel(self._plain_lags(place, len(inside)))
                gap = (inside[(slice(None), *block)] - plain).abs().max()
                worst = torch.maximum(worst, gap)
        group = self.slabs.group
        every = group.gather(worst.to(self.device), [1] * group.size)
        at_zero = self.kernel(torch.zeros(1, len(box), dtype=torch.float64))
        return column.reshape(-1), float(every.max()) / float(at_zero)

    def _lags(self) -> Iterator[tuple[slice, Float[Tensor, "p *half d"]]]:
        """Lags of this rank's planes, so many at once that memory does not matter."""
        shape, spacing = self.torus.shape, self.torus.grid.spacing
        planes = torch.arange(self.slabs.planes.start, self.slabs.planes.stop)
        planes = torch.where(planes > shape[0] // 2, planes - shape[0], planes)
        others = [torch.arange(n // 2 + 1) for n in shape[1:]]
        width = max(1, _TOGETHER // math.prod(len(axis) for axis in others))
        for start in range(0, len(planes), width):
            some = planes[start : start + width]
            yield slice(start, start + len(some)), _mesh([some, *others], spacing)

    def _plain_lags(self, place: slice, count: int) -> Float[Tensor, "p *box d"]:
        """Lags within the box, not wrapped, of some of this rank's planes."""
        grid = self.torus.grid
        first = self.slabs.planes.start + place.start
        others = [torch.arange(n) for n in grid.shape[1:]]
        return _mesh([torch.arange(first, first + count), *others], grid.spacing)


def _mesh(index: list[Tensor], spacing: tuple[float, ...]) -> Float[Tensor, "*n d"]:
    axes = [i.to(torch.float64) * h for i, h in zip(index, spacing, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
