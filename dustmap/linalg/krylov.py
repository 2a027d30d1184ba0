r"""Lanczos' recursion on a batch of rows that may leave: ``K V = V T + β v eᵀ``.

T is tridiagonal (Paige & Saunders 1975, SIAM J. Numer. Anal. 12, 617, section 2). With
rounding V loses its orthogonality as eigenvalues converge, and everything else comes
later: for wide spectra by many times the order of K. A kept V may be used to restore it
(Parlett 1998, The Symmetric Eigenvalue Problem, ch. 13).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from dustmap.linalg.operator import inner

Product = Callable[[Float[Tensor, "b n"]], Float[Tensor, "b n"]]

# A new vector below this part of K v is rounding: the space of the column is exhausted.
_BREAKDOWN = 1e-14
# Steps whose vectors are reserved together.
BLOCK = 32


class Krylov:
    """One Lanczos recursion for each row of a batch, of which rows may leave.

    Of all rows, ``scale`` is ``‖b‖``, ``quadratic`` is ``bᵀ K b = ‖b‖² T₁₁`` and
    ``energy`` the lower bound ``‖b‖² (T⁻¹)₁₁`` of ``bᵀ K⁻¹ b`` (Golub & Meurant 1994,
    by its recursion in the pivots of T); ``active`` are the numbers of those that go
    on. ``smallest`` and ``largest`` are the extreme Ritz values as :meth:`look` found
    them, infinite and zero before; ``assumed`` is what who decides whether a row is
    done took for the smallest eigenvalue.

    Parameters
    ----------
    rhs
        The rows b.
    stored
        Whether V is kept, in ``blocks`` of shape ``(b, 32, n)``.
    orthogonal
        Whether every new vector is orthogonalised against the kept V.
    """

    def __init__(
        self,
        rhs: Float[Tensor, "b n"],
        *,
        stored: bool = False,
        orthogonal: bool = False,
    ) -> None:
        assert stored or not orthogonal, "orthogonality takes a stored basis"
        self.stored, self.orthogonal = stored, orthogonal
        self.blocks: list[Tensor] = []
        count, device = len(rhs), rhs.device
        self.scale = inner(rhs, rhs).sqrt()
        self.energy = torch.zeros_like(self.scale)
        self.quadratic = torch.zeros_like(self.scale)
        self.steps = torch.zeros(count, dtype=torch.int64, device=device)
        self.step = 0
        self.active = torch.nonzero(self.scale > 0)[:, 0]
        self.current = rhs[self.active] / self.scale[self.active, None].to(rhs.dtype)
        self.before = torch.zeros_like(self.current)
        self.latest = self.current
        ones = torch.ones_like(self.scale[self.active])
        self.alpha, self.beta = ones, torch.zeros_like(ones)
        self.beta_before = self.beta
        self.alive = ones > 0
        self._pivot, self._reach, self._gain = ones, ones, torch.zeros_like(ones)
        self.smallest = torch.full_like(self.scale, torch.inf)
        self.largest = torch.zeros_like(self.scale)
        self.assumed = torch.full_like(self.scale, torch.inf)
        self._entries = torch.zeros(2, BLOCK, count, dtype=torch.float64)

    def advance(self, product: Product) -> None:
        """One product: the next entries of T; ``latest`` is the vector they belong to.

        Reductions are in float64.
        """
        if self.stored:
            self._store()
        image = product(self.current).detach()
        dtype = image.dtype
        self.beta_before = self.beta
        image = image - self.beta[:, None].to(dtype) * self.before
        self.alpha = inner(self.current, image)
        size = inner(image, image).sqrt()
        image = image - self.alpha[:, None].to(dtype) * self.current
        if self.orthogonal:
            image = self._orthogonalised(image)
        self.beta = inner(image, image).sqrt()
        self.alive = self.beta > _BREAKDOWN * size
        self.beta = torch.where(self.alive, self.beta, torch.zeros_like(self.beta))
        self.step += 1
        self.steps[self.active] += 1
        self._note()
        self._raise_energy()
        self.before = self.latest = self.current
        safe = torch.where(self.alive, self.beta, torch.ones_like(self.beta))
        self.current = image / safe[:, None].to(dtype)

    def _note(self) -> None:
        """Keep the entries of T (on the CPU, where its eigenvalues are found)."""
        if self.step > self._entries.shape[1]:
            more = torch.zeros_like(self._entries)
            self._entries = torch.cat([self._entries, more], dim=1)
        entries = torch.stack([self.alpha, self.beta]).cpu()
        self._entries[:, self.step - 1, self.active.cpu()] = entries

    def _store(self) -> None:
        place = self.step % BLOCK
        if not place:
            shape = (len(self.scale), BLOCK, self.current.shape[1])
            self.blocks.append(self.current.new_zeros(shape))
        self.blocks[-1][self.active, place] = self.current

    def _orthogonalised(self, image: Tensor) -> Tensor:
        everyone = len(self.active) == len(self.scale)
        for block in self.blocks:
            basis = block if everyone else block[self.active]
            along = torch.bmm(basis, image[..., None])
            image = torch.baddbmm(image[:, None], along.mT, basis, alpha=-1)[:, 0]
        return image

    def _raise_energy(self) -> None:
        """``(T⁻¹)₁₁`` grows by ``Π (β_i/δ_i)² / δ_j`` with the pivots δ of T."""
        if self.step == 1:
            pivot = self.alpha
            self.quadratic[self.active] = pivot * self.scale[self.active] ** 2
        else:
            ratio = self.beta_before / self._pivot
            pivot = self.alpha - ratio * self.beta_before
            self._reach = self._reach * ratio**2
        # A pivot that rounding made negative adds nothing: the bound stays a bound.
        good = (pivot > 0) & (self._pivot > 0)
        self._pivot = torch.where(good, pivot, -torch.ones_like(pivot))
        added = torch.where(good, self._reach / pivot, torch.zeros_like(pivot))
        self._gain = self._gain + added
        self.energy[self.active] = self._gain * self.scale[self.active] ** 2

    def keep(self, going: Tensor) -> None:
        """Let the other rows leave."""
        for name in (
            "active",
            "current",
            "before",
            "latest",
            "alpha",
            "beta",
            "beta_before",
            "alive",
            "_pivot",
            "_reach",
            "_gain",
        ):
            setattr(self, name, getattr(self, name)[going])

    def look(self, rows: Tensor) -> None:
        """Find the smallest and largest eigenvalue of some rows' T."""
        steps = self.steps.tolist()
        for row in rows.tolist():
            count = steps[row]
            if not count:
                continue
            diagonal, side = self._entries[:, :count, row].numpy()
            for ends, place in ((self.smallest, 0), (self.largest, count - 1)):
                found = eigh_tridiagonal(
                    diagonal,
                    side[:-1],
                    eigvals_only=True,
                    select="i",
                    select_range=(place, place),
                )
                ends[row] = float(found[0])
