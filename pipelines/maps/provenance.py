"""Origin, band and citation in exported files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dustmap
from pipelines.bands import joined_bands
from pipelines.formats.citation import citation_block

if TYPE_CHECKING:
    from pipelines.run.folder import Run


def provenance(run: Run) -> dict[str, Any]:
    """Return the origin of an exported file, with citations."""
    # The readers of tables take longer to import than a query.
    from pipelines.catalog.provenance import surveys

    held = surveys(run.provenance.get("catalogue") or {})
    catalogues = [one for one in held if one["name"]]
    band = joined_bands([one["band"] for one in held])
    inputs = run.provenance["inputs"]
    return {
        "program": f"dustmap {dustmap.__version__}",
        "run": run.path.name,
        "fit": run.provenance["fit"],
        "plan": run.plan.as_dict(),
        "configuration": run.provenance["configuration"],
        "inputs": inputs,
        "catalogues": catalogues,
        "extinction_band": band,
        "verdict": str(run.verdict),
        # Of densities and their integrals.
        "estimate": "map",
        "citation": citation_block(catalogues, band, inputs),
    }
