"""Whitening on a torus that is shared out in slabs: no process holds a grid vector."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.distributed.group import Group
from dustmap.distributed.slab_fft import SlabCirculant, SlabFFT
from dustmap.distributed.slabs import Slabs, SlabSpace
from dustmap.grid import Torus
from dustmap.kernels import Kernel
from dustmap.whitening.torus import (
    TorusWhitening,
    default_image_tolerance,
    even_column,
    wrap_gap,
)


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
        column = self._column(1)
        gap = wrap_gap(kernel, torus.grid, column, self.slabs.planes.start)
        gaps = torch.tensor([gap], dtype=torch.float64, device=self.device)
        worst = group.gather(gaps, [1] * group.size).max()
        column = column.reshape(-1).to(self.device)
        circulant = SlabCirculant.from_slab(column, SlabFFT(self.slabs))
        del column
        self._keep(circulant, circulant, float(worst))

    def _column(self, refinement: int) -> Float[Tensor, "p *n"]:
        """Of this rank's planes: all along the first axis, the others mirrored."""
        n = self.torus.shape[0]
        planes = torch.arange(self.slabs.planes.start, self.slabs.planes.stop)
        signed = torch.where(planes > n // 2, planes - n, planes).to(torch.float64)
        axes = self.torus.half_lags()
        axes[0] = signed * self.torus.grid.spacing[0]
        return even_column(self.periodic, axes, self.slabs.own_shape)

    @property
    def size(self) -> int:
        """Length of this rank's part of ε."""
        return self.slabs.size

    @property
    def fine_size(self) -> int:
        """Length of this rank's part of the field."""
        return self.slabs.size

    def refined(self, refinement: int) -> SlabTorusWhitening:
        if refinement != 1:
            raise ValueError(
                "a grid in slabs has the refinement 1 only, got "
                f"{refinement}: take a finer grid, or one that every process holds"
            )
        return self

    def _copy(self, kernel: Kernel, refinement: int) -> SlabTorusWhitening:
        return SlabTorusWhitening(
            kernel,
            self.torus,
            group=self.slabs.group,
            cuts=self.slabs.cuts,
            dtype=self.dtype,
            device=self.device,
            image_tolerance=self.image_tolerance,
        )
