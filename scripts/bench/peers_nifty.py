"""NIFTy.re on the benchmark's problem: a log-normal density with a learnt spectrum.

``ρ(x) = exp(f(x)) exp(−|z| / H)``, f a correlated field on the padded torus whose
power spectrum is learnt (Arras et al. 2022, Nature Astronomy 6, 259), H learnt as
well, both with broad priors. The maximum a posteriori is found by Newton-CG, from
which geoVI (Frank et al. 2021) may go on.

Compilation is made before the clock starts, by a throw-away step.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import nifty.re as jft
import numpy as np
import scipy.sparse
from peers_worker import Seconds, Work, mirrored_interval, now, read_work, stopwatch

# NIFTy's own rule stops a Newton step's conjugate gradients before they are of use.
_CG = {"miniter": 20, "maxiter": 100}
# A sample starts from its prior part: where data are strong it is off, and its density
# explodes, until the solve has gone far.
_SAMPLE_CG = {"tol": 1e-3, "maxiter": 1000}
# Before the last iteration samples serve only to find the next point.
_EARLY = 200
_BRIEF = {"miniter": 2, "maxiter": 2}


def linear_map(matrix: scipy.sparse.csr_matrix) -> Callable[[jax.Array], jax.Array]:
    """A sparse product that JAX differentiates and transposes.

    SciPy's product is called back: on a CPU it takes a fifth of the time of
    ``segment_sum`` and less than a tenth of that of ``BCOO``.
    """
    forward, backward = matrix, scipy.sparse.csr_matrix(matrix.T)

    def product(m: scipy.sparse.csr_matrix) -> Callable[[Any, jax.Array], jax.Array]:
        def apply(_: Any, x: jax.Array) -> jax.Array:
            shape = jax.ShapeDtypeStruct((len(m.indptr) - 1,), x.dtype)
            return jax.pure_callback(lambda v: m @ np.asarray(v), shape, x)

        return apply

    @jax.custom_jvp
    def linear(x: jax.Array) -> jax.Array:
        return product(forward)(None, x)

    @linear.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        tangent = jax.custom_derivatives.linear_call(
            product(forward), product(backward), (), tangents[0]
        )
        return linear(primals[0]), tangent

    return linear


class Model:
    """The density, the likelihood and what is predicted."""

    def __init__(self, work: Work) -> None:
        arrays, dtype = work.arrays, work.settings["dtype"]
        shape = tuple(int(n) for n in arrays["torus"])
        maker = jft.CorrelatedFieldMaker("f")
        maker.set_amplitude_total_offset(
            offset_mean=float(np.log(arrays["mean_density"])), offset_std=(1.0, 0.5)
        )
        maker.add_fluctuations(
            shape,
            tuple(float(h) for h in arrays["spacing"]),
            fluctuations=(1.0, 0.5),
            loglogavgslope=(-4.0, 1.0),
            flexibility=(0.5, 0.25),
            non_parametric_kind="power",
        )
        field = maker.finalize()
        height = jft.LogNormalPrior(*work.settings["height"], name="height")
        heights = jnp.asarray(arrays["heights"], dtype)

        class Density(jft.Model):
            def __init__(self) -> None:
                self.field, self.height = field, height
                super().__init__(init=field.init | height.init)

            def __call__(self, x: Any) -> jax.Array:
                f = self.field(x) - heights / self.height(x)
                return jnp.exp(f).reshape(-1)

        self.density = Density()
        self.rays = linear_map(work.matrix("train"))
        sigma = jnp.asarray(arrays["sigma"], dtype)
        self.likelihood = jft.Gaussian(
            jnp.asarray(arrays["extinction"], dtype),
            noise_cov_inv=lambda r: r / sigma**2,
            noise_std_inv=lambda r: r / sigma,
        ).amend(lambda x: self.rays(self.density(x)), domain=self.density.domain)
        self._test = work.matrix("test"), work.matrix("points")

    def start(self, seed: int) -> jft.Vector:
        """A small random point, as NIFTy's own demonstrations start."""
        key = jax.random.PRNGKey(seed)
        return 0.1 * jft.Vector(self.density.init(key))

    def predict(self, x: Any) -> tuple[np.ndarray, np.ndarray]:
        """Extinction [mag] and density [mag/pc] at the test stars."""
        density = np.asarray(self.density(x))
        rays, points = self._test
        return rays @ density, points @ density


class Steps:
    """Watches Newton's method from its objective: every accepted step is kept."""

    def __init__(self, objective: Callable[[Any], Any]) -> None:
        self._objective = objective
        self.energies: list[float] = []
        self.points: list[Any] = []
        self.times: list[Seconds] = []

    def __call__(self, x: Any) -> Any:
        energy, gradient = self._objective(x)
        # A line search keeps what does not raise the energy.
        if not self.energies or float(energy) <= self.energies[-1]:
            self.energies.append(float(energy))
            self.points.append(x)
            self.times.append(now())
        return energy, gradient


def newton(optimiser: jft.OptimizeVI, x: Any, most: int, **cg: int) -> Steps:
    """Newton-CG on the negative log posterior; the first point is the start."""
    samples = jft.Samples(pos=x, samples=None, keys=None)
    steps = Steps(lambda at: optimiser.kl_value_and_grad(at, primals_samples=samples))
    jft.minimize(
        None,
        x,
        method="newton-cg",
        options={
            "fun_and_grad": steps,
            "hessp": lambda at, t: optimiser.kl_metric(at, t, primals_samples=samples),
            "maxiter": most,
            "xtol": 0.0,
            "cg_kwargs": cg or _CG,
        },
    )
    return steps


def maximise(work: Work, model: Model) -> None:
    """Rows for the wanted numbers of Newton steps."""
    wanted = work.settings["newton_steps"]
    optimiser = jft.OptimizeVI(model.likelihood, 1, kl_map="smap")
    start = model.start(work.settings["seed"])
    with stopwatch() as compiled:
        newton(optimiser, start, 1, **_BRIEF)
        model.predict(start)
    started = now()
    steps = newton(optimiser, start, max(wanted))
    for count in wanted:
        if count >= len(steps.points):
            break
        with stopwatch() as predicted:
            extinction, density = model.predict(steps.points[count])
        work.add(
            f"MAP {count} steps",
            steps.times[count] - started,
            {"extinction": extinction, "density": density},
            iterations=count,
            energy=steps.energies[count],
            prediction=predicted[0].as_dict(),
        )
    work.facts["compilation"] = compiled[0].as_dict()
    work.facts["newton_steps_taken"] = len(steps.points) - 1


def sample(work: Work, model: Model) -> None:
    """A row for every iteration of geoVI.

    They start from scratch: at the maximum a posteriori the spectrum's amplitude is too
    large, since small excitations make up for it, and samples explode. Samples are of
    the field at the spectrum of the time, which itself follows from all of them.
    """
    settings = work.settings
    vi = jft.OptimizeVI(
        model.likelihood,
        settings["iterations"],
        kl_map="smap",
        linear_minimizer_jit=False,
    )
    start = model.start(settings["seed"])
    with stopwatch() as compiled:
        _iterate(vi, settings | {"iterations": 1, "steps": 1}, start, _BRIEF, _BRIEF)
        model.predict(start)
    started = now()
    rounds = _iterate(vi, settings, start, _CG, _SAMPLE_CG)
    for count, (samples, at) in enumerate(rounds, 1):
        with stopwatch() as predicted:
            predictions = _moments(model, samples)
        work.add(
            f"{settings['name']} {count} iterations",
            at - started,
            predictions,
            iterations=count,
            samples=len(samples),
            prediction=predicted[0].as_dict(),
        )
    work.facts["compilation"] = compiled[0].as_dict()


def _iterate(
    vi: jft.OptimizeVI,
    settings: dict[str, Any],
    x: Any,
    cg: dict[str, Any],
    sample_cg: dict[str, Any],
) -> list[tuple[jft.Samples, Seconds]]:
    """Samples and the time after every iteration."""
    last = settings["iterations"] - 1

    def sampler(iteration: int) -> dict[str, Any]:
        most = sample_cg["maxiter"]
        most = most if iteration >= last else min(most, _EARLY)
        return {"cg_name": None, "cg_kwargs": sample_cg | {"maxiter": most}}

    minimiser = {"maxiter": settings["steps"], "xtol": 0.0, "cg_kwargs": cg}
    state = vi.init_state(
        jax.random.PRNGKey(settings["seed"] + 1),
        n_samples=settings["samples"],
        draw_linear_kwargs=sampler,
        nonlinearly_update_kwargs={"minimize_kwargs": minimiser},
        kl_kwargs={"minimize_kwargs": minimiser},
        sample_mode=settings["mode"],
        point_estimates=tuple(name for name in x.tree if name != "fxi"),
    )
    samples = jft.Samples(pos=x, samples=None, keys=None)
    rounds = []
    for _ in range(settings["iterations"]):
        samples, state = vi.update(samples, state)
        rounds.append((samples, now()))
    return rounds


def _moments(model: Model, samples: jft.Samples) -> dict[str, np.ndarray]:
    """Means and intervals; those of the density are symmetric in its logarithm."""
    drawn = [model.predict(x) for x in samples]
    extinction, density = (np.stack(part) for part in zip(*drawn, strict=True))
    return {
        "extinction": extinction.mean(axis=0),
        "density": density.mean(axis=0),
        "extinction_interval": mirrored_interval(extinction),
        "density_interval": np.exp(mirrored_interval(np.log(density))),
    }


def main() -> None:
    """Read the problem, fit, record."""
    work = read_work()
    # A called-back product waits for ever for its argument if no other thread is left
    # in XLA's pool; threads that share a core do no harm.
    if int(os.environ.get("NPROC", "0")) < 2:
        raise RuntimeError("set NPROC to at least 2 before Python starts")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_enable_x64", work.settings["dtype"] == "float64")
    model = Model(work)
    {"MAP": maximise}.get(work.settings["name"], sample)(work, model)
    work.finish()


if __name__ == "__main__":
    main()
