"""What an exported file says of its origin."""

from __future__ import annotations

from typing import Any

import dustmap
from pipelines.run import Run


def provenance(run: Run) -> dict[str, Any]:
    """What an exported file says of its origin."""
    catalogues = _catalogues(run)
    bands = sorted({entry["band"] for entry in catalogues if entry["band"]})
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "plan": run.plan.as_dict(),
        "configuration": run.provenance["configuration"],
        "inputs": run.provenance["inputs"],
        "catalogues": catalogues,
        "extinction_band": ", ".join(bands) or "as in the catalogue",
    }


def _catalogues(run: Run) -> list[dict[str, str]]:
    """Name, reference, DOI and extinction band of every catalogue that is known."""
    catalogue = run.provenance.get("catalogue") or {}
    tables = catalogue.get("partitions", {"": catalogue}).values()
    presets = [table.get("preset") for table in tables]
    wanted = ("name", "title", "reference", "doi", "band")
    return [{key: str(p.get(key, "")) for key in wanted} for p in presets if p]
