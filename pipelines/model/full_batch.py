"""The engine full-batch: a map on tori, and samples by randomized maximum a posteriori.

See `dustmap.inference.full_batch`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from dustmap.distributed.group import Group
from dustmap.functionals import Functionals
from dustmap.inference import full_batch
from dustmap.inference.full_batch import FullBatch, FullBatchResult
from dustmap.inference.scales.band_power import band_powers, priors_of
from dustmap.linalg.cg import ConjugateGradients
from dustmap.models.base import ForwardModel
from dustmap.models.gaussian import TorusGaussian
from dustmap.models.lognormal import LogNormal
from dustmap.whitening import LevelWhitening, TorusWhitening
from pipelines.config import FitConfig
from pipelines.model.cost import preconditioner_rank
from pipelines.model.observations import noise_of, sight_lines, step_rays
from pipelines.model.plan import Plan
from pipelines.model.problem import Device, Inference, Problem

# Of Gauss-Newton steps: densities that vary by factors took 16 to 23 to their mode.
_NEWTON_STEPS = 50
# Expected decrease at which a lognormal fit is done [nats per star]: an error
# of 0.14 posterior standard deviations in each direction that a star fixes.
_NEWTON_TOLERANCE = 1e-2
# Relative residual of a sample of a Gaussian density.
SAMPLE_TOLERANCE = 1e-2
# Draws of the variance below the grid of a Gaussian density.
DRAWS = 16
# Solves that measure the spectrum of a map with independent noise.
_PROBES = 2
# Least stars for that. The mode of a density that few stars see lies far below its
# mean, which passes for power at long wavelengths: with scales from there the log score
# of 1,022 clusters fell from -0.581 to -0.595.
_PROBED = 20_000


# Largest lengthscale in grid steps: with 7 instead of 5, errors of 48,000 stars were 4%
# smaller, those of 3,200 stars 4% larger; so for more stars than this.
_MANY = 20_000
_FINEST = 7.0
_COARSEST = 5.0


def spacing_limits(
    extent: np.ndarray, stars: int, work: float, config: FitConfig
) -> tuple[float, float]:
    """Return the most grid steps in a lengthscale, and no limit of its own [pc]."""
    return _FINEST if stars > _MANY else _COARSEST, 0.0


rays = step_rays


def build_model(
    plan: Plan, functionals: Functionals, device: Device, group: Group | None = None
) -> ForwardModel:
    """Build the model on the plan's tori: of the field, or of its exponential."""
    shared: dict[str, Any] = {"mean": plan.mean, "group": group}
    place: dict[str, Any] = {"dtype": device["dtype"], "device": device["device"]}
    place["cut"] = plan.cut
    kernel, tori = plan.build_kernel(), plan.tori
    if not plan.is_lognormal:
        return TorusGaussian(
            TorusWhitening(kernel, tori[0], **place),
            functionals,
            residual_refinement=2,
            residual_count=DRAWS,
            generator=device["generator"],
            **shared,
        )
    return LogNormal(
        LevelWhitening(kernel, tori, **place)
        if len(tori) > 1
        else TorusWhitening(kernel, tori[0], **place),
        functionals,
        subgrid_share=plan.subgrid_share,
        **shared,
    )


def infer(problem: Problem) -> Inference:
    """Return the map and its samples; all ranks have them."""
    plan, stars, config = problem.plan, problem.stars, problem.config
    generator, inference = problem.device["generator"], config.inference
    lines = sight_lines(plan, stars)
    model = build_model(plan, lines, problem.device, problem.group)
    noise, start, probes = problem.correlation, problem.start, 0
    if start is not None and len(start) != model.latent_size:
        # The modes of a map with another prior.
        start = None
    if noise is None:
        noise = noise_of(plan, stars, config)
        probes = _PROBES if plan.is_lognormal and len(lines) > _PROBED else 0
    rank = preconditioner_rank(
        config, len(stars), model.latent_size, shared=problem.correlation is not None
    )
    settings = FullBatch(
        solver=ConjugateGradients(
            rtol=inference.tolerance, max_steps=inference.max_iterations
        ),
        samples=inference.samples,
        sample_rtol=SAMPLE_TOLERANCE,
        subgrid_noise=config.model.subgrid_noise,
        preconditioner_rank=min(rank, model.latent_size),
        newton_steps=_NEWTON_STEPS,
        newton_tolerance=_NEWTON_TOLERANCE,
        block=plan.block,
        refine=not problem.rough,
        probes=probes,
    )
    drawn, priors = [], None
    if isinstance(model, LogNormal) and not problem.rough:
        drawn = plan.drawn_kernels(inference.samples // 2, inference.seed)
        priors = priors_of(model.whitening, drawn) if drawn else None
    result = full_batch.infer(
        model,
        torch.as_tensor(stars.extinction),
        noise,
        settings=settings,
        generator=generator,
        start=start,
        on_step=problem.on_step,
        checkpointer=problem.checkpointer,
        teams=problem.teams,
        shared_errors=problem.shared_errors,
        priors=priors,
    )
    common = math.sqrt(plan.common_noise**2 + result.common_noise)
    facts = _facts(model, result)
    if drawn:
        # The prior of every pair of samples: lengthscale [pc], std, octaves.
        facts["pairs"] = [
            {
                "lengthscale": kernel.lengthscale.tolist(),
                "std": math.sqrt(float(kernel.variance)),
                "octaves": np.exp(kernel.bend).tolist(),
            }
            for kernel in drawn
        ]
    return Inference(
        plan=replace(plan, common_noise=common, subgrid_share=result.subgrid_share),
        mean=result.mean,
        samples=result.samples,
        noise=result.noise_variance.sqrt(),
        converged=result.converged,
        messages=(*_messages(model, result), *_warnings(result)),
        warnings=_warnings(result),
        facts=facts,
    )


def _messages(model: ForwardModel, result: FullBatchResult) -> tuple[str, ...]:
    """Say how the solves and the steps ended."""
    messages = [f"mean: {result.mean_solution.message}"]
    if isinstance(model, TorusGaussian | LogNormal) and model.weights.excess > 1:
        messages.append(
            f"sight lines: a tree of rays with {model.weights.nonzeros:.2g} entries, "
            "fewer than a third of those of single rays"
        )
    if not model.linear and not result.mode_converged:
        messages.append(
            f"the log-normal fit stopped after {result.newton_steps} steps to the "
            f"mode, with over {_NEWTON_TOLERANCE} of log posterior per star to gain"
        )
    if result.sample_solution is not None:
        line = result.sample_solution.message
        if not model.linear and not result.sample_solution.converged.all():
            line += (
                ": raise the limits on steps and iterations, or loosen the tolerance"
            )
        messages.append(f"samples: {line}")
    return tuple(messages)


def _warnings(result: FullBatchResult) -> tuple[str, ...]:
    """Say what did not settle although the solves converged."""
    if result.share_settled:
        return ()
    return (
        f"the share {result.subgrid_share:.3g} of the unresolved variance did not "
        "settle: intervals may be off",
    )


def _facts(model: ForwardModel, result: FullBatchResult) -> dict[str, Any]:
    """Describe the torus and what it leaves out, W, steps, weights, and the spectrum.

    The spectrum is the power of ln density over the prior's, by octaves of wavelength
    [pc].
    """
    assert isinstance(model, TorusGaussian | LogNormal)
    facts: dict[str, Any] = {
        "torus_shapes": [list(torus.shape) for torus in model.whitening.tori],
        "entries_of_W": model.weights.nonzeros,
        "ray_tree": model.weights.excess > 1,
        "newton_steps": result.newton_steps,
    }
    if isinstance(model.whitening, TorusWhitening):
        report = model.whitening.report
        facts["wrap_error"] = report.wrap_error
        facts["dropped_modes"] = report.dropped_modes
    if result.degrees is not None:
        facts["student_degrees"] = result.degrees
        facts["stars_weighed_down"] = int((result.weights < 0.3).sum())
    if isinstance(model, TorusGaussian):
        median = model.variance.to(torch.float64).sqrt().median()
        return {**facts, "median_subgrid_std": float(median)}
    facts["subgrid_line_variance"] = [part.line for part in model.local]
    if result.determined is not None:
        bands = band_powers(model.whitening, result.mean, result.determined)
        facts["spectrum"] = [asdict(band) for band in bands]
    return facts
