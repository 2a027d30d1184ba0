"""What a regression chose and found: the same words on screen and in the folder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.regress.choosing import Choice
from pipelines.regress.columns import SplitData
from pipelines.regress.fitted import FittedModel
from pipelines.regress.options import Options
from pipelines.regress.prediction import Scaling
from pipelines.run.verdict import Verdict, verdict

# Of the metrics, what the verdict rests on.
_JUDGED = (
    *("rmse", "rmse_neighbours", "excess"),
    *("coverage_68", "coverage_95", "z_median"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The record of one regression; ``str`` gives the lines for people."""

    source: Path
    output: Path
    rows: int
    data: SplitData
    options: Options
    choice: Choice
    scaling: Scaling
    metrics: dict[str, float]
    seconds: dict[str, float]
    memory: float

    @property
    def method(self) -> str:
        """The one that was asked for or chosen."""
        return self.choice.method

    @property
    def model(self) -> FittedModel:
        """Its fit."""
        return self.choice.model

    @property
    def held_out(self) -> dict[str, float]:
        """Mean log density of held-out rows in the target's unit, by method tried."""
        unit = math.log(self.scaling.y_scale)
        return {name: score - unit for name, score in self.choice.tried.items()}

    @property
    def converged(self) -> bool:
        """Whether every search and solve says so."""
        return self.model.converged

    @property
    def verdict(self) -> Verdict:
        """Whether the fit can be used, by its test rows."""
        score = {n: self.metrics[n] for n in _JUDGED if n in self.metrics}
        if not score["rmse_neighbours"]:
            # Rows at the very places of the test rows leave no error to compare with.
            score = {n: v for n, v in score.items() if n not in _JUDGED[1:3]}
        score["stars"] = self.metrics["rows"]
        return verdict(self.converged, score, intervals=self.data.classes is None)

    def hyperparameters(self) -> dict[str, Any]:
        """In the units of the table."""
        kernel, unit = self.model.kernel, self.scaling.y_scale
        own = kernel.lengthscale.detach().expand(len(self.data.inputs)).numpy()
        scales = (own * self.scaling.x_scale).tolist()
        return {
            "kernel": type(kernel).__name__,
            "lengthscale": dict(zip(self.data.inputs, scales, strict=True)),
            "std": float(kernel.variance.detach().sqrt()) * unit,
            "mean": self.model.mean * unit + self.scaling.y_shift,
            **self.model.likelihood.noise_in(unit),
        }

    def as_dict(self) -> dict[str, Any]:
        """For ``summary.json``."""
        data, scaling = self.data, self.scaling
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
            "why": self.choice.why,
            "tried": self.held_out,
            "not_tried": self.choice.untried,
            "kernel_choice": self.model.why,
            "hyperparameters": self.hyperparameters(),
            "scaling": {
                "input_shift": scaling.x_shift.tolist(),
                "input_scale": scaling.x_scale.tolist(),
                "target_shift": scaling.y_shift,
                "target_scale": scaling.y_scale,
            },
            "converged": self.converged,
            "grade": self.verdict.grade,
            "verdict": str(self.verdict),
            "messages": [*data.notes, *self.model.messages],
            "seed": self.options.seed,
            "seconds": self.seconds,
            "peak_memory_bytes": self.memory,
            **self.model.facts,
        }

    def __str__(self) -> str:
        data, found = self.data, self.hyperparameters()
        kept = f"{int((~data.test).sum()):,} fitted, {int(data.test.sum()):,} tested"
        first = f"{self.source}: {self.rows:,} rows, {kept}"
        if data.left_out:
            gaps = ", ".join(f"{n} in {name}" for name, n in data.missing.items())
            first += f", {data.left_out:,} left out (missing or not finite: {gaps})"
        scales = (f"{n} {v:.3g}" for n, v in found["lengthscale"].items())
        noise = f"; noise {found['noise']:.4g}" if "noise" in found else ""
        if "degrees" in found:
            noise += f" (Student-T, ν = {found['degrees']:.3g})"
        times = ", ".join(f"{what} {s:.1f} s" for what, s in self.seconds.items())
        lines = [
            first,
            f"target: {data.target}; inputs: {', '.join(data.inputs)}",
            *data.notes,
            f"method: {self.method} ({self.choice.why}); likelihood "
            f"{self.options.likelihood}",
            *self._comparison(),
            f"kernel: {self.model.why}",
            f"lengthscale: {', '.join(scales)}",
            f"field: mean {found['mean']:.4g}, std {found['std']:.4g}{noise}",
            *self.model.messages,
            f"{int(self.metrics['rows']):,} test rows: {self._scores()}",
            f"time: {times}; peak memory {self.memory / 2**30:.2f} GiB",
            f"run: {self.output}",
            str(self.verdict),
        ]
        return "\n".join(lines)

    def _comparison(self) -> list[str]:
        """What was tried and what was not, if there was a choice."""
        if not self.held_out:
            return []
        scores = (f"{name} {score:.4g}" for name, score in self.held_out.items())
        lines = [f"log density per row held out of the fit: {', '.join(scores)}"]
        if self.choice.untried:
            each = (f"{n} (some {s:.0f} s)" for n, s in self.choice.untried.items())
            budget = f"--time-budget {self.options.time_budget:g}"
            lines.append(f"not tried within {budget}: {', '.join(each)}")
        return lines

    def _scores(self) -> str:
        if self.data.classes is not None:
            return (
                "accuracy {accuracy:.4f} (class 1 has {share_of_class_1:.4f}), nll "
                "{nll:.4f}, Brier {brier:.4f}"
            ).format_map(self.metrics)
        return (
            "RMSE {rmse:.4g} (they scatter by {std_of_truth:.4g}; the mean of the 10 "
            "nearest rows {rmse_neighbours:.4g}), MAE {mae:.4g}, nll {nll:.4g}; the "
            "68% intervals contain {coverage_68:.3f}, the 95% ones {coverage_95:.3f}"
        ).format_map(self.metrics)
