"""No whitening at all: the parameters are the field, as samples of it are stored."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dustmap.whitening.nested import LevelWhitening
from dustmap.whitening.torus import TorusWhitening


class FieldWhitening(TorusWhitening):
    """In place of ε the field itself on the (refined) torus, for reading samples.

    Models made with it answer as those that the samples were drawn with, as long as
    they see nothing of the torus where the field is not known.
    """

    @property
    def size(self) -> int:
        """Length of the field."""
        return self.fine_size

    def colour(self, eps: Float[Tensor, "*batch f"]) -> Float[Tensor, "*batch f"]:
        """The field as it is."""
        return eps

    def colour_transpose(
        self, field: Float[Tensor, "*batch f"]
    ) -> Float[Tensor, "*batch f"]:
        """The field as it is."""
        return field

    def whiten(self, values: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch f"]:
        """The conditional mean of the field given values on the coarse torus."""
        return super().colour(super().whiten(values))


class LevelFieldWhitening(LevelWhitening):
    """The same on nested tori."""

    def colour(self, eps: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m"]:
        """The field as it is."""
        return eps

    def colour_transpose(
        self, field: Float[Tensor, "*batch m"]
    ) -> Float[Tensor, "*batch m"]:
        """The field as it is."""
        return field
