"""From a run to a small file that its posterior samples are redrawn from."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dustmap.inference.posterior_coding import Coded, Error, FieldCode
from dustmap.inference.sample_coding import GroupCode, SampleCode
from dustmap.inference.white_noise import WhiteNoise
from dustmap.linalg.circulant import Circulant
from dustmap.models.base import ForwardModel
from dustmap.models.rowwise import RowwiseGaussian
from pipelines.base.errors import InputError
from pipelines.redraw.container import write_container
from pipelines.redraw.entropy import packed, packed_lengths
from pipelines.redraw.probing import probe
from pipelines.run.folder import Run, read_run

TOLERANCE = 1e-3
# Beyond this the rounding would show in the posterior's own standard deviation.
_FINEST, _COARSEST = 1e-6, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesReport:
    """What was written; ``str`` gives the lines for people.

    ``rms`` and ``worst`` are the largest over mean and samples, in the prior's
    standard deviation of the field; ``before`` is the size of the tensors [bytes].
    """

    output: Path
    samples: int
    size: int
    before: int
    rms: float
    worst: float
    seeded: bool

    def __str__(self) -> str:
        lines = [
            f"{self.samples} samples and the mean in {self.size / 1e6:.3g} MB, "
            f"{self.before / self.size:.3g} times less than the "
            f"{self.before / 1e6:.3g} MB of the run",
            f"decoded fields are off by {self.rms:.2g} of the prior's standard "
            f"deviation (rms, the worst sample), {self.worst:.2g} at the worst point",
        ]
        if not self.seeded:
            lines.append(
                "note: this run does not say what its samples' white noise was drawn "
                "from, so that they are stored without a seed: a run that is fitted "
                "again makes a file several times smaller"
            )
        return "\n".join([*lines, f"samples: {self.output}"])


def write_samples(
    source: Path, output: Path, *, tolerance: float = TOLERANCE, overwrite: bool = False
) -> SamplesReport:
    """Write what redraws the posterior samples of a run, usable without the run.

    Parameters
    ----------
    tolerance
        Rms error of the decoded field of each sample and of the mean, in the prior's
        standard deviation; the worst point may be off by ten times that.

    Raises
    ------
    InputError
        If ``source`` is no whole run or has no samples, ``output`` exists, or the
        tolerance is out of range.
    FloatingPointError
        If the numbers of the run are too coarse for the tolerance.
    """
    if not _FINEST <= tolerance <= _COARSEST:
        raise InputError(
            f"a tolerance lies between {_FINEST:g} and {_COARSEST:g} of the prior's "
            f"standard deviation, got {tolerance:g}"
        )
    if output.exists() and not overwrite:
        raise InputError(f"{output} exists: choose another or pass --overwrite")
    run = read_run(source)
    posterior = run.posterior
    if not len(posterior.samples):
        raise InputError(
            f"{source} has no posterior samples: fit with --set inference.samples=32"
        )
    known = run.summary.get("white_noise")
    noise = None if known is None else WhiteNoise(**known)
    if noise is not None and not _explains(noise, run):
        raise InputError(
            f"{source}: the white noise of its samples cannot be drawn again here: "
            "this torch draws others from the same seed than that of the fit; use "
            "the version of torch that the fit was made with"
        )
    blocks, groups, errors = _encoded(run, noise, tolerance)
    header = {
        **_description(run),
        "tolerance": tolerance,
        "white_noise": known,
        "samples": len(posterior.samples),
        "groups": groups,
        "errors": [asdict(error) for error in errors],
        "probe": None if noise is None else probe(noise, run.plan.torus_shape),
    }
    size = write_container(output, header, blocks, overwrite=overwrite)
    tensors = (posterior.mean, posterior.samples, run.support)
    return SamplesReport(
        output=output,
        samples=len(posterior.samples),
        size=size,
        before=sum(t.numel() * t.element_size() for t in tensors),
        rms=max(error.rms for error in errors),
        worst=max(error.worst for error in errors),
        seeded=noise is not None,
    )


def latent_root(model: ForwardModel) -> Circulant:
    """``C^{1/2}`` on the torus where the ε of a model live."""
    whitening: Any = model.whitening  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(model, RowwiseGaussian):
        return whitening.root
    return whitening.coarse.power(0.5).to(model.dtype, model.device)


def _encoded(
    run: Run, noise: WhiteNoise | None, tolerance: float
) -> tuple[dict[str, bytes], list[dict[str, Any]], list[Error]]:
    """Blocks of bytes, what the header says of them, and errors of mean and samples."""
    posterior = run.posterior
    fields = FieldCode(latent_root(posterior.model))
    mean = posterior.mean[None]
    centre = fields.encode(mean, tolerance, mean, lambda found: found)
    coded: list[Coded | GroupCode] = [centre]
    code = SampleCode(fields, noise, fields.decode(centre.code)[0])
    groups = code.groups(len(posterior.samples))
    # Packing holds no lock: it runs beside the next group's transforms.
    with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as pool:
        work = {"mean": _packing(pool, coded[0])}
        for place, numbers in enumerate(groups):
            part = posterior.samples[numbers[0] : numbers[-1] + 1]
            coded.append(code.encode(part, numbers, tolerance))
            work[f"group-{place}"] = _packing(pool, coded[-1])
        blocks = {name: future.result() for name, future in work.items()}
    blocks["support"] = packed_lengths(run.support.numpy())
    described = [
        {
            "block": name,
            "step": one.code.step,
            "rows": len(one.code.numbers),
            "gains": list(one.gains) if isinstance(one, GroupCode) else [],
        }
        for name, one in zip(work, coded, strict=True)
    ]
    return blocks, described, [error for one in coded for error in one.errors]


def _packing(pool: ThreadPoolExecutor, coded: Coded | GroupCode) -> Future[bytes]:
    return pool.submit(packed, coded.code.numbers.cpu().numpy())


def _explains(noise: WhiteNoise, run: Run) -> bool:
    """Whether the first sample is its white noise, but for what data have moved."""
    sample = run.posterior.samples[0].to(torch.float64).cpu()
    return bool(sample @ noise.draw(0, run.plan.torus_shape) > 0.2 * len(sample))


def _description(run: Run) -> dict[str, Any]:
    return {
        "run": run.path.name,
        "plan": run.plan.as_dict(),
        "summary": run.summary,
        "provenance": run.provenance,
        "dtype": str(run.posterior.mean.dtype).removeprefix("torch."),
        "support_shape": list(run.support.shape),
    }
