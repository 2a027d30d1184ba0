"""Where a solve by conjugate gradients stands, and how it is taken up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dustmap.journal import Frame, Journal, Pattern, State
from dustmap.linalg.space import VectorSpace

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What is solved, and who is told of it."""

    product: Product
    rhs: Float[Tensor, "b n"]
    scale: Float[Tensor, " b"]
    precondition: Product
    on_step: Callable[[int, float], None] | None
    journal: Journal | None
    space: VectorSpace

    def relative_norm(
        self, residual: Float[Tensor, "b n"], scale: Float[Tensor, " b"]
    ) -> Float[Tensor, " b"]:
        """``‖r‖`` over the scale, or as it is where that is zero; in float64."""
        norm = self.space.inner(residual, residual).sqrt()
        return torch.where(scale > 0, norm / torch.where(scale > 0, scale, 1.0), norm)

    def require_finite(self, run: Run, **values: Tensor) -> None:
        """With a journal, nothing that is not finite may go on."""
        if self.journal is not None:
            step = f"iteration {int(run.steps.max()) if len(run.steps) else 0}"
            self.journal.require_finite(step, **values)


@dataclass(slots=True, kw_only=True)
class Run:
    """Where a solve stands.

    ``todo`` are the columns that the recursion at hand began with, ``active`` those of
    them that it has not finished; ``r``, ``p`` and ``rz`` are theirs. ``residual`` is
    that of ``todo`` after a recursion, from which the next one starts.
    """

    x: Float[Tensor, "b n"]
    steps: Int[Tensor, " b"]
    relative: Float[Tensor, " b"]
    residual: Float[Tensor, "b n"]
    restart: int
    todo: Int[Tensor, " t"]
    active: Int[Tensor, " k"]
    r: Float[Tensor, "k n"]
    p: Float[Tensor, "k n"]
    rz: Float[Tensor, " k"]

    @classmethod
    def begun(cls, system: System, start: Float[Tensor, "b n"] | None) -> Run:
        """Before the first recursion."""
        rhs, scale = system.rhs, system.scale
        # The answer to zero is known, and no residual is small relative to it.
        x = torch.zeros_like(rhs) if start is None else start * (scale > 0)[:, None]
        residual = rhs - system.product(x) if start is not None else rhs.clone()
        none = torch.zeros(0, dtype=torch.int64, device=rhs.device)
        run = cls(
            x=x,
            steps=torch.zeros(len(rhs), dtype=torch.int64, device=rhs.device),
            relative=system.relative_norm(residual, scale),
            residual=residual,
            restart=0,
            todo=none,
            active=none,
            r=rhs[:0],
            p=rhs[:0],
            rz=scale[:0],
        )
        system.require_finite(run, residual=run.relative)
        return run

    @classmethod
    def taken_up(cls, frame: Frame, rhs: Float[Tensor, "b n"]) -> Run | None:
        """As it was saved within a recursion, if it was."""
        b, n = rhs.shape
        whole, real = torch.int64, torch.float64
        pattern: Pattern = {
            "x": (rhs.dtype, (b, n)),
            "steps": (whole, (b,)),
            "relative": (real, (b,)),
            "restart": int,
            "todo": (whole, (None,)),
            "active": (whole, (None,)),
            "r": (rhs.dtype, (None, n)),
            "p": (rhs.dtype, (None, n)),
            "rz": (real, (None,)),
        }
        known = frame.take(pattern)
        if known is None:
            return None
        for name, value in known.items():
            if isinstance(value, Tensor):
                # Some are changed in place, and those given are the caller's.
                known[name] = value.to(rhs.device, copy=True)
        return cls(residual=torch.zeros_like(rhs), **known)

    def saved(self) -> State:
        """All but what is computed before it is read again."""
        names = self.__slots__
        return {name: getattr(self, name) for name in names if name != "residual"}

    def restarted(self, system: System) -> None:
        """A recursion of the columns to do, from their true residuals."""
        self.active = self.todo
        self.r = self.residual[self.active]
        z = system.precondition(self.r)
        self.p = z.clone()
        self.rz = system.space.inner(self.r, z)
        system.require_finite(self, preconditioned_residual=self.rz)

    def keep(self, going: Bool[Tensor, " k"]) -> None:
        """Columns that are done leave the recursion."""
        if bool(going.all()):
            return
        self.active, self.r = self.active[going], self.r[going]
        self.p, self.rz = self.p[going], self.rz[going]

    def turn(self, system: System) -> None:
        """The next direction, conjugate to those before."""
        z = system.precondition(self.r)
        rz = system.space.inner(self.r, z)
        system.require_finite(self, preconditioned_residual=rz)
        self.p = z + (rz / self.rz).to(self.p.dtype)[:, None] * self.p
        self.rz = rz
