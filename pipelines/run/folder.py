"""The run folder of a fit, written and read.

=========================  ====================================================
``run.json``               plan, provenance, summary; read first
``config.toml``            the configuration
``posterior.safetensors``  mean and samples of ε, sight-line lengths per cell
``residual.safetensors``   the stars' residuals and their covariance, if learnt
``metrics.jsonl``          one record per reported solver iteration
``stars.parquet``          the fitted stars (at most 200,000 of them)
``held_out.parquet``       held-out stars: observed, by the map, without it
``manifest.json``          hashes of all of these; ``COMPLETE`` is written last
=========================  ====================================================
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.base.geometry import Box
from pipelines.base.table import Facts, Table
from pipelines.model.engine import posterior_model
from pipelines.model.plan import Plan
from pipelines.run.record import read_run_record
from pipelines.run.residual import read_residual
from pipelines.run.verdict import Verdict, verdict
from pipelines.saving.workspace import SUFFIX, read_json
from pipelines.storage.atomic import check_output_folder


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """A finished fit.

    ``supports`` are lengths of sight lines in the cells of every grid [cells];
    ``summary`` and ``provenance`` are parts of ``run.json``.
    """

    path: Path
    plan: Plan
    posterior: Posterior
    supports: tuple[Tensor, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Facts:
        """Box, spacing, stars and held-out figures in a few lines."""
        counts = self.summary.get("counts", {})
        held = self.summary.get("held_out", {})
        facts = {
            "run": str(self.path),
            **self.box.facts(self.plan.grid.spacing),
            "stars": f"{counts.get('fitted', 0):,} fitted, "
            f"{counts.get('held out', 0):,} held out",
            "samples": str(len(self.posterior.samples)),
        }
        if held:
            facts["held-out stars"] = f"RMSE {held['rmse']:.3g} mag, noise included"
        return {**facts, "verdict": str(self.verdict)}

    def __repr__(self) -> str:
        return Table.of_rows([self.facts], "dustmap run").listed()

    def _repr_html_(self) -> str:
        return Table.of_rows([self.facts], "dustmap run").html()

    @property
    def verdict(self) -> Verdict:
        """The grade of the map, its reason, and advice."""
        return verdict(self.summary["converged"], self.summary.get("held_out", {}))

    @property
    def seed(self) -> int:
        """Seed of the fit, and of draws from the map."""
        return int(self.provenance["seed"])

    @property
    def box(self) -> Box:
        """The volume of the map."""
        return Box.of(self.plan.grid)

    def support_at(self, points: np.ndarray) -> np.ndarray:
        """Return the sight-line length [cells] around points [pc], ``(..., 3)``.

        Cells are those of the finest grid there; zero outside the box.
        """
        flat = points.reshape(-1, 3)
        found = np.zeros(len(flat))
        for level, rows, index in self.plan.nested_grids.nearest(flat):
            values = self.supports[level].reshape(self.plan.grids[level].shape).numpy()
            found[rows] = values[tuple(index.T)]
        return found.reshape(points.shape[:-1])

    @property
    def support(self) -> Tensor:
        """Sight-line lengths in the cells of the coarsest grid."""
        return self.supports[0]


def check_run_folder(path: Path, *, overwrite: bool, marker: str = "run.json") -> None:
    """Check an output folder, as `check_output_folder`; refuse names of workspaces.

    Raises `InputError` if the folder must not or cannot be written.
    """
    if path.name.endswith(SUFFIX):
        raise InputError(
            f"{path}: names that end in {SUFFIX} are reserved for unfinished fits, "
            "choose another output"
        )
    check_output_folder(path, marker, overwrite=overwrite)


def write_posterior(
    folder: Path, mean: Tensor, samples: Tensor, supports: Sequence[Tensor]
) -> None:
    """Save ε's mean ``(P,)`` and samples ``(S, P)``, and sight-line lengths of grids.

    The format, safetensors, holds plain numbers without executable content.
    """
    named = zip(support_names(len(supports)), supports, strict=True)
    tensors = {"mean": mean, "samples": samples, **dict(named)}
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors' own writer makes files that only the owner may read.
    (folder / "posterior.safetensors").write_bytes(save(plain))


def support_names(levels: int) -> list[str]:
    """Return the names of the sight-line lengths of nested grids."""
    return ["support", *(f"support_{level}" for level in range(1, levels))]


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write strict, indented JSON."""
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_run(path: str | Path) -> Run:
    """Read a finished run after checking its manifest.

    Raises `InputError` if the folder is not a run, is incomplete, or was altered.
    """
    folder = Path(path)
    description = read_run_record(folder, whole=True)
    plan = Plan.from_dict(description["plan"])
    tensors = load_file(folder / "posterior.safetensors")
    model = posterior_model(
        plan,
        dtype=tensors["mean"].dtype,
        device=torch.device("cpu"),
        seed=int(description["provenance"]["seed"]),
    )
    if len(tensors["mean"]) != model.latent_size:
        raise InputError(
            f"{folder}: the posterior holds {len(tensors['mean'])} numbers a sample, "
            f"expected {model.latent_size} Fourier modes: an earlier version wrote it, "
            "fit again"
        )
    return Run(
        path=folder,
        plan=plan,
        posterior=Posterior(
            model=model,
            mean=tensors["mean"],
            samples=tensors["samples"],
            residual=read_residual(folder),
        ),
        supports=tuple(tensors[name] for name in support_names(len(plan.tori))),
        summary=description["summary"],
        provenance=description["provenance"],
    )


def fit_of(path: Path) -> str:
    """Return the name of the fit of a finished run; empty without one."""
    try:
        return str(read_json(path / "run.json")["provenance"]["fit"])
    except (KeyError, TypeError):
        return ""
