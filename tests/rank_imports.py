"""What ranks need, imported once for all of them."""

import dustmap.inference.full_batch
import dustmap.inference.svi
import dustmap.models.gaussian
import dustmap.models.lognormal  # noqa: F401
