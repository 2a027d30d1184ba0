"""Settings and result of the full-batch engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxtyping import Float
from torch import Tensor

from dustmap.inference.full_batch.progress import Samples
from dustmap.linalg.cg import ConjugateGradients, Solution


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
        Expected decrease at convergence, in nats per observation: 1e-3 is an error of
        the mode of 0.045 posterior standard deviations in each direction that an
        observation constrains.
    block
        Samples that are solved together: bounds the memory.
    sample_rtol
        Relative residual of a converged sample; that of ``solver`` if ``None``.
        Samples need less accuracy than the mean, since they scatter. For a non-linear
        model, ``newton_tolerance`` applies instead.
    refine
        Whether samples of a non-linear model, or its mode where there are none, are
        refined by accurate solves. A map that residuals are only learnt from does not
        merit them.
    probes
        Solves at the mode of a non-linear model that tell how much of each latent
        number observations determine; 0 for none.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FullBatchResult:
    """Mean and samples of ε given the data, with the status of their solves.

    ``noise_variance`` is the final Σ (sub-grid noise, distance errors and outliers'
    weights included); ``mean`` is the posterior mean of a linear model, else the mode;
    ``prediction`` is ``apply(m)`` at the observations; ``weights`` and ``degrees`` are
    the weights and ν of the Student-T distribution (``None`` if the noise is normal);
    ``common_noise`` is the learnt ``τ²`` and ``subgrid_share`` the model's α. If α was
    learnt, ``share_settled`` says whether it converged inside the trial range. If
    ``out_of_time``, the steps to the mode ended early, or samples are fewer than asked
    for or not refined. ``determined`` estimates ``(1 − Λ⁻¹)_ii`` of the latent numbers
    (Fourier modes of ε where the model has them), if there were probes: of large groups
    of them it tells the sum.
    """

    mean: Float[Tensor, " p"]
    samples: Float[Tensor, "s p"]
    noise_variance: Float[Tensor, " n"]
    prediction: Float[Tensor, " n"]
    newton_steps: int
    mean_solution: Solution
    sample_solution: Solution | Samples | None
    converged: bool
    weights: Float[Tensor, " n"]
    degrees: float | None = None
    common_noise: float = 0.0
    subgrid_share: float = 1.0
    share_settled: bool = True
    out_of_time: bool = False
    determined: Float[Tensor, " l"] | None = None
