"""What a regression chose and found: the same words on screen and in the folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.regress.columns import SplitData
from pipelines.regress.fitted import FittedModel
from pipelines.regress.options import Options
from pipelines.regress.scaling import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The record of one regression; ``str`` gives the lines for people."""

    source: Path
    output: Path
    rows: int
    data: SplitData
    options: Options
    method: str
    why: str
    model: FittedModel
    scaling: Scaling
    metrics: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)
    memory: float = 0.0

    @property
    def converged(self) -> bool:
        """Whether every search and solve says so."""
        return self.model.converged

    def hyperparameters(self) -> dict[str, Any]:
        """In the units of the table."""
        kernel = self.model.kernel
        own = kernel.lengthscale.detach().expand(len(self.data.inputs)).numpy()
        scales = (own * self.scaling.x_scale).tolist()
        unit = self.scaling.y_scale
        return {
            "kernel": type(kernel).__name__,
            "lengthscale": dict(zip(self.data.inputs, scales, strict=True)),
            "std": float(kernel.variance.detach().sqrt()) * unit,
            "mean": self.model.mean * unit + self.scaling.y_shift,
            **self.model.likelihood.noise_in(unit),
        }

    def as_dict(self) -> dict[str, Any]:
        """For ``summary.json``."""
        data = self.data
        return {
            "source": self.source.name,
            "target": data.target,
            "inputs": list(data.inputs),
            "classes": list(data.classes) if data.classes else None,
            "rows": {
                "read": self.rows,
                "left_out": data.left_out,
                "missing_by_column": data.missing,
                "fitted": int((~data.test).sum()),
                "tested": int(data.test.sum()),
            },
            "likelihood": self.options.likelihood,
            "method": self.method,
            "why": self.why,
            "kernel_choice": self.model.why,
            "hyperparameters": self.hyperparameters(),
            "scaling": {
                "input_shift": self.scaling.x_shift.tolist(),
                "input_scale": self.scaling.x_scale.tolist(),
                "target_shift": self.scaling.y_shift,
                "target_scale": self.scaling.y_scale,
            },
            "converged": self.converged,
            "messages": [*data.notes, *self.model.messages],
            "seed": self.options.seed,
            "seconds": self.seconds,
            "peak_memory_bytes": self.memory,
            **self.model.facts,
        }

    def __str__(self) -> str:
        data, found = self.data, self.hyperparameters()
        kept = f"{int((~data.test).sum()):,} fitted, {int(data.test.sum()):,} tested"
        lines = [f"{self.source}: {self.rows:,} rows, {kept}"]
        if data.left_out:
            gaps = ", ".join(f"{n} in {name}" for name, n in data.missing.items())
            lines[0] += f", {data.left_out:,} left out (missing or not finite: {gaps})"
        lines += [
            f"target: {data.target}; inputs: {', '.join(data.inputs)}",
            *data.notes,
            f"method: {self.method} ({self.why}); likelihood {self.options.likelihood}",
            f"kernel: {self.model.why}",
            "lengthscale: "
            + ", ".join(f"{n} {v:.3g}" for n, v in found["lengthscale"].items()),
            f"field: mean {found['mean']:.4g}, std {found['std']:.4g}"
            + _noise_text(found),
            *self.model.messages,
            self._scores(),
            "time: "
            + ", ".join(f"{what} {s:.1f} s" for what, s in self.seconds.items())
            + f"; peak memory {self.memory / 2**30:.2f} GiB",
            f"run: {self.output}",
        ]
        return "\n".join(lines)

    def _scores(self) -> str:
        m = self.metrics
        count = f"{int(m['rows']):,} test rows"
        if self.data.classes is not None:
            return (
                f"{count}: accuracy {m['accuracy']:.4f} (class 1 has "
                f"{m['share_of_class_1']:.4f}), nll {m['nll']:.4f}, Brier "
                f"{m['brier']:.4f}"
            )
        return (
            f"{count}: RMSE {m['rmse']:.4g} (they scatter by {m['std_of_truth']:.4g}), "
            f"MAE {m['mae']:.4g}, nll {m['nll']:.4g}; the 68% intervals hold "
            f"{m['coverage_68']:.3f}, the 95% ones {m['coverage_95']:.3f}"
        )


def _noise_text(found: dict[str, Any]) -> str:
    if "noise" not in found:
        return ""
    degrees = f" (Student-T, ν = {found['degrees']:.3g})" if "degrees" in found else ""
    return f"; noise {found['noise']:.4g}{degrees}"
