"""What an exported file says of its origin."""

from __future__ import annotations

from typing import Any

import dustmap
from pipelines.bands.source import joined_bands
from pipelines.catalog.provenance import surveys
from pipelines.formats.citation import citation_block
from pipelines.run.folder import Run


def provenance(run: Run) -> dict[str, Any]:
    """What an exported file says of its origin, and whom it asks to cite."""
    told = surveys(run.provenance.get("catalogue") or {})
    catalogues = [one for one in told if one["name"]]
    band = joined_bands([one["band"] for one in told])
    inputs = run.provenance["inputs"]
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "plan": run.plan.as_dict(),
        "configuration": run.provenance["configuration"],
        "inputs": inputs,
        "catalogues": catalogues,
        "extinction_band": band,
        "citation": citation_block(catalogues, band, inputs),
    }
