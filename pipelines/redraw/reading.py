"""The posterior of a file of samples: decoded when asked for, whole or one by one."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dustmap.inference.posterior_coding import Code, FieldCode
from dustmap.inference.sample_coding import GroupCode, SampleCode
from dustmap.inference.white_noise import WhiteNoise
from dustmap.models.base import ForwardModel
from dustmap.posterior import Posterior
from pipelines.base.errors import InputError
from pipelines.model.plan import Plan
from pipelines.redraw.container import Container, read_container
from pipelines.redraw.entropy import unpacked, unpacked_lengths
from pipelines.redraw.probing import is_same
from pipelines.redraw.writing import latent_root
from pipelines.run.folder import Run, posterior_model


class StoredSamples:
    """What a fit left behind, without its run folder.

    Nothing is decoded before it is asked for. ``posterior`` and ``run`` hold all
    samples in memory, as a run does; ``sample`` and ``draws`` one at a time.

    Parameters
    ----------
    container
        The file, found whole.
    device
        Where the decoded tensors are to be.
    """

    def __init__(self, container: Container, device: torch.device) -> None:
        header = container.header
        self.path = container.path
        self.plan = Plan.from_dict(header["plan"])
        self.summary: dict[str, Any] = header["summary"]
        self.provenance: dict[str, Any] = header["provenance"]
        self.tolerance: float = header["tolerance"]
        self._container = container
        self._device = device

    def __len__(self) -> int:
        """Number of samples."""
        return int(self._container.header["samples"])

    @property
    def error(self) -> dict[str, float]:
        """Largest ``rms`` and ``worst`` of the decoded fields, in the prior's std."""
        errors = self._container.header["errors"]
        return {name: max(e[name] for e in errors) for name in ("rms", "worst")}

    @cached_property
    def model(self) -> ForwardModel:
        """The field, seen nowhere in particular."""
        return posterior_model(
            self.plan,
            dtype=getattr(torch, self._container.header["dtype"]),
            device=self._device,
            seed=int(self.provenance["seed"]),
        )

    @cached_property
    def mean(self) -> Float[Tensor, " p"]:
        """Posterior mean (or mode) of ε."""
        return self._fields.decode(self._code(0))[0]

    @cached_property
    def support(self) -> Tensor:
        """Lengths of sight lines in each cell of the grid [cells]."""
        shape = tuple(self._container.header["support_shape"])
        data = self._container.block("support")
        return torch.from_numpy(unpacked_lengths(data, shape))

    def sample(self, number: int) -> Float[Tensor, " p"]:
        """ε of one sample; those of an antithetic pair cost as much as both.

        Raises
        ------
        InputError
            If there is no such sample, or this torch draws other white noise from the
            same seed than the one that wrote the file.
        """
        if not 0 <= number < len(self):
            raise InputError(
                f"{self.path} holds {len(self)} samples, numbered from 0: there is no "
                f"{number}"
            )
        for place, numbers in enumerate(self._samples.groups(len(self))):
            if number in numbers:
                return self._group(place, numbers)[number - numbers[0]]
        raise AssertionError("every sample is in a group")

    def draws(self, count: int | None = None) -> Iterator[Float[Tensor, " p"]]:
        """ε of the first samples, one after another; all of them by default."""
        wanted = len(self) if count is None else count
        if not 0 <= wanted <= len(self):
            raise InputError(
                f"{self.path} holds {len(self)} samples, {wanted} were asked for"
            )
        for place, numbers in enumerate(self._samples.groups(len(self))):
            if numbers[0] >= wanted:
                return
            yield from self._group(place, numbers)[: wanted - numbers[0]]

    @cached_property
    def posterior(self) -> Posterior:
        """Mean and samples, decoded once and kept."""
        samples = torch.empty(
            len(self), len(self.mean), dtype=self.mean.dtype, device=self.mean.device
        )
        for row, eps in zip(samples, self.draws(), strict=True):
            row.copy_(eps)
        return Posterior(model=self.model, mean=self.mean, samples=samples)

    @property
    def run(self) -> Run:
        """As a run, for whatever takes one."""
        return Run(
            path=self.path,
            plan=self.plan,
            posterior=self.posterior,
            support=self.support,
            summary=self.summary,
            provenance=self.provenance,
        )

    @cached_property
    def _fields(self) -> FieldCode:
        return FieldCode(latent_root(self.model))

    @cached_property
    def _samples(self) -> SampleCode:
        header = self._container.header
        known = header["white_noise"]
        noise = None if known is None else WhiteNoise(**known)
        if noise is not None:
            white = noise.draw(0, self._fields.shape)
            if not is_same(white, header["probe"]):
                raise InputError(
                    f"{self.path}: torch {torch.__version__} draws other white noise "
                    "from the same seed than the one that wrote this file: use that "
                    f"one (the fit was made with dustmap {self.provenance['version']})"
                )
        return SampleCode(self._fields, noise, self.mean)

    def _group(self, place: int, numbers: range) -> Float[Tensor, "r p"]:
        gains = tuple(self._container.header["groups"][place + 1]["gains"])
        group = GroupCode(code=self._code(place + 1), gains=gains)
        return self._samples.decode(group, numbers)

    def _code(self, place: int) -> Code:
        described = self._container.header["groups"][place]
        try:
            values = unpacked(self._container.block(described["block"]))
            rows = values.reshape(described["rows"], self._fields.size)
        except (lzma.LZMAError, ValueError) as error:
            raise InputError(
                f"{self.path}: block {described['block']} cannot be decoded ({error}): "
                "write the file again"
            ) from error
        numbers = torch.from_numpy(rows).to(self._device)
        return Code(numbers=numbers, step=float(described["step"]))


def open_samples(
    path: str | os.PathLike[str], *, device: torch.device | None = None
) -> StoredSamples:
    """Open a file of samples after comparing it with its SHA-256.

    Raises
    ------
    InputError
        If it is absent, none of this kind, or altered.
    """
    return StoredSamples(read_container(Path(path)), device or torch.device("cpu"))
