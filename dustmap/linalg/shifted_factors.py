r"""MINRES' QR factors of ``T + t_q I`` for many shifts, and two ways to the answers.

Lanczos' T is triangularised by one Givens rotation per step and shift,
``T + t I = Q R`` with three diagonals in R; ``x = V R⁻¹ g`` (Paige & Saunders 1975,
SIAM J. Numer. Anal. 12, 617). :class:`ShortRecurrence` carries the columns of
``V R⁻¹`` along: four vectors per shift, and rounding that grows as the square of the
condition number (Sleijpen, van der Vorst & Modersitzki 2000, SIAM J. Matrix Anal.
Appl. 22, 726). :class:`StoredBasis` keeps V and solves with R at the end: one vector
per step whatever the number of shifts, and rounding in proportion to the condition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.linalg.krylov import BLOCK, Krylov


class ShiftedFactors(ABC):
    """The rotations of all shifts for the rows that are active.

    ``residual`` holds every shift's ``‖b − (K + t_q I) x_q‖`` by the recursion.
    """

    def __init__(self, krylov: Krylov, shifts: Float[Tensor, " q"]) -> None:
        count = len(krylov.active)
        self.shifts = shifts
        start = krylov.scale[krylov.active].expand(len(shifts), count)
        self.residual = start.clone()
        self.live = torch.arange(len(shifts), device=shifts.device)
        self._signed = start.clone()
        self._cosine, self._sine = torch.ones_like(start), torch.zeros_like(start)
        self._cosine_before, self._sine_before = self._cosine, self._sine

    def update(self, krylov: Krylov) -> None:
        """One more column of T for every shift that is live."""
        beta = krylov.beta_before
        above = self._sine_before * beta
        rotated = self._cosine_before * beta
        diagonal = krylov.alpha + self.shifts[self.live][:, None]
        beside = self._cosine * rotated + self._sine * diagonal
        rest = -self._sine * rotated + self._cosine * diagonal
        norm = torch.hypot(rest, krylov.beta.expand_as(rest))
        regular = norm > 0
        # Zero only where K + t I is singular: the answer then stays as it is.
        safe = torch.where(regular, norm, torch.ones_like(norm))
        self._cosine_before, self._sine_before = self._cosine, self._sine
        self._cosine, self._sine = rest / safe, krylov.beta / safe
        step = torch.where(regular, self._cosine * self._signed, 0.0)
        self._signed = torch.where(regular, -self._sine * self._signed, self._signed)
        self.residual[self.live] = self._signed.abs()
        self._extend(krylov, above, beside, safe, step)

    @abstractmethod
    def _extend(
        self, krylov: Krylov, above: Tensor, beside: Tensor, norm: Tensor, step: Tensor
    ) -> None:
        """One more column of R, entries from the top, and the next entry of g."""

    @abstractmethod
    def keep_columns(self, going: Tensor, krylov: Krylov) -> None:
        """Let the other rows leave (before they leave the recursion)."""

    @abstractmethod
    def keep_shifts(self, going: Tensor, krylov: Krylov) -> None:
        """Let shifts that every row is done with leave."""

    @abstractmethod
    def answers(self, krylov: Krylov) -> Float[Tensor, "q b n"]:
        """``x_q`` of all rows, once."""

    def _narrow(self, index: tuple[slice | Tensor, ...], *names: str) -> None:
        scalars = ("_signed", "_cosine", "_sine", "_cosine_before", "_sine_before")
        for name in (*scalars, *names):
            setattr(self, name, getattr(self, name)[index])


class ShortRecurrence(ShiftedFactors):
    """Answers by the directions ``V R⁻¹``, of which the last two are needed."""

    def __init__(self, krylov: Krylov, shifts: Float[Tensor, " q"]) -> None:
        super().__init__(krylov, shifts)
        rows = krylov.current
        self._all = rows.new_zeros(len(shifts), len(krylov.scale), rows.shape[1])
        self._value = rows.new_zeros(len(shifts), *rows.shape)
        self._direction = torch.zeros_like(self._value)
        self._direction_before = torch.zeros_like(self._value)

    def _extend(
        self, krylov: Krylov, above: Tensor, beside: Tensor, norm: Tensor, step: Tensor
    ) -> None:
        dtype = self._value.dtype
        new = self._direction_before.mul_(-above[..., None].to(dtype))
        new.addcmul_(self._direction, -beside[..., None].to(dtype))
        new.add_(krylov.latest).div_(norm[..., None].to(dtype))
        self._direction_before, self._direction = self._direction, new
        self._value.addcmul_(new, step[..., None].to(dtype))

    def keep_columns(self, going: Tensor, krylov: Krylov) -> None:
        self._write(krylov)
        self._narrow((slice(None), going), *self._vectors)
        self.residual = self.residual[:, going]

    def keep_shifts(self, going: Tensor, krylov: Krylov) -> None:
        going = going[self.live]
        if bool(going.all()):
            return
        self._write(krylov)
        self._narrow((going,), *self._vectors)
        self.live = self.live[going]

    def answers(self, krylov: Krylov) -> Float[Tensor, "q b n"]:
        self._write(krylov)
        return self._all

    def _write(self, krylov: Krylov) -> None:
        if len(krylov.active) and len(self.live):
            self._all[self.live[:, None], krylov.active[None]] = self._value

    _vectors = ("_value", "_direction", "_direction_before")


class StoredBasis(ShiftedFactors):
    """Answers by back-substitution with R and one product with the kept V."""

    def __init__(self, krylov: Krylov, shifts: Float[Tensor, " q"]) -> None:
        super().__init__(krylov, shifts)
        self._columns: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = []

    def _extend(
        self, krylov: Krylov, above: Tensor, beside: Tensor, norm: Tensor, step: Tensor
    ) -> None:
        self._columns.append((krylov.active, above, beside, norm, step))

    def keep_columns(self, going: Tensor, krylov: Krylov) -> None:
        self._narrow((slice(None), going))
        self.residual = self.residual[:, going]

    def keep_shifts(self, going: Tensor, krylov: Krylov) -> None:
        """A shift costs no vectors here: all stay."""

    def answers(self, krylov: Krylov) -> Float[Tensor, "q b n"]:
        size = krylov.current.shape[1]
        total = krylov.current.new_zeros(len(krylov.scale), len(self.shifts), size)
        if not self._columns:
            return total.transpose(0, 1)
        coefficients = self._coefficients(len(krylov.scale))
        pieces = coefficients.split(BLOCK, dim=2)
        for block, part in zip(krylov.blocks, pieces, strict=True):
            total.baddbmm_(part.to(total.dtype), block[:, : part.shape[2]])
        return total.transpose(0, 1)

    def _coefficients(self, count: int) -> Float[Tensor, "b q j"]:
        """``R⁻¹ g``: zero beyond a row's last step."""
        shape = (count, len(self.shifts))
        zeros = self._signed.new_zeros(shape)
        beside_next, above_next, above_after = zeros, zeros, zeros
        next_one, after = zeros, zeros
        found = self._signed.new_zeros(*shape, len(self._columns))
        for j in range(len(self._columns) - 1, -1, -1):
            active, above, beside, norm, step = self._columns[j]
            known = beside_next * next_one + above_after * after
            here = zeros.clone()
            here[active] = (step.mT - known[active]) / norm.mT
            found[..., j] = here
            after, next_one = next_one, here
            above_after = above_next
            beside_next, above_next = zeros.clone(), zeros.clone()
            beside_next[active], above_next[active] = beside.mT, above.mT
        return found
