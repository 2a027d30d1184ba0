"""Names of the shapes that many signatures share: samples s, places n, parameters p."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

Device = torch.device | str
# A number for every observation or place; s draws of them, or a batch of any shape.
Vector = Float[Tensor, " n"]
Draws = Float[Tensor, "s n"]
Vectors = Float[Tensor, "*b n"]
# Positions in d dimensions, other positions, and numbers for all pairs.
Points = Float[Tensor, "n d"]
Places = Float[Tensor, "m d"]
Pairs = Float[Tensor, "n m"]
# Whitened parameters ε: one set, s samples, or a batch of any shape.
Eps = Float[Tensor, " p"]
EpsDraws = Float[Tensor, "s p"]
EpsBatch = Float[Tensor, "*b p"]
# Row numbers, as of a minibatch.
Index = Int[Tensor, " b"]
