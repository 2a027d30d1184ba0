"""Settings of the full-batch engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dustmap.linalg.cg import ConjugateGradients


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatch:
    """Settings of the full-batch engine.

    Parameters
    ----------
    solver
        Conjugate gradients on Λ.
    samples
        S, the number of posterior samples; even for a non-linear model, whose samples
        are antithetic pairs.
    subgrid_noise
        Add the conditional variance ``v_n`` to the noise (FITC-like objective)
        instead of only charging for it in the bound.
    preconditioner_rank
        Rank of the randomised Nyström preconditioner; 0 for none.
    newton_steps
        Limit on Gauss–Newton steps.
    newton_tolerance
        Expected decrease at convergence, in nats per observation, or per latent number
        if there are fewer: 1e-3 is an error of the mode of 0.045 posterior standard
        deviations in each direction that an observation constrains.
    block
        Samples that are solved together; it bounds the memory.
    sample_rtol
        Relative residual of a converged sample; by default that of ``solver``.
        Samples need less accuracy than the mean, since they scatter. For a non-linear
        model, ``newton_tolerance`` applies instead.
    refine
        Refine samples of a non-linear model, or its mode if there are none, by accurate
        solves. A map that only serves to learn residuals does not need them.
    probes
        Number of random vectors at the mode of a non-linear model that estimate how
        well observations constrain each latent number; 0 for none.
    """

    solver: ConjugateGradients = field(default_factory=ConjugateGradients)
    samples: int = 32
    subgrid_noise: bool = True
    preconditioner_rank: int = 0
    newton_steps: int = 20
    newton_tolerance: float = 1e-3
    block: int = 8
    sample_rtol: float | None = None
    refine: bool = True
    probes: int = 0

    def __post_init__(self) -> None:
        if self.samples < 0 or self.preconditioner_rank < 0:
            raise ValueError("samples and preconditioner_rank must not be negative")
        if self.newton_steps < 1 or self.block < 1:
            raise ValueError("newton_steps and block must be at least 1")

    @property
    def sample_solver(self) -> ConjugateGradients:
        """Conjugate gradients for samples."""
        if self.sample_rtol is None:
            return self.solver
        return replace(self.solver, rtol=self.sample_rtol)
