"""The group of processes that make one inference together.

Every rank runs the same program on bitwise equal numbers, so that all take the same
branches; they exchange all other numbers here. If a collective fails because a rank has
ended, the remaining ranks raise :class:`PeerError`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

# Seconds without an answer after which a rank counts as lost.
TIMEOUT = 60.0
# Timeout of the others while one rank works alone (its connection is monitored).
_PATIENT = timedelta(days=7)

T = TypeVar("T")


class PeerError(RuntimeError):
    """Another process of the group has ended or does not answer."""


class Group:
    """Ranks 0 … size − 1; a single rank, without communication, by default.

    Parameters
    ----------
    connected
        True if ``torch.distributed`` is initialised for this program, with gloo for
        tensors on the CPU. All its processes belong to the group.
    timeout
        Seconds that a collective waits for the other ranks.
    here
        Number of ranks that share this machine's memory; all unless given.
    """

    def __init__(
        self,
        *,
        connected: bool = False,
        timeout: float = TIMEOUT,
        here: int | None = None,
    ) -> None:
        self.rank = dist.get_rank() if connected else 0
        self.size = dist.get_world_size() if connected else 1
        self.here = self.size if here is None else here
        self._timeout = timeout
        self._name = f"rank {self.rank} of {self.size}"
        # Process group of torch.distributed; all processes if None.
        self._members: Any = None
        self._patient: Any = None
        if self.size > 1:
            self._patient = dist.new_group(backend="gloo", timeout=_PATIENT)

    def split(self, teams: int) -> tuple[Group, Group]:
        """Return this rank's team, of neighbouring ranks, and its counterparts.

        In the second group, a rank is the number of its team. All ranks of the program
        must call this together.

        Raises `ValueError` if teams of one size are impossible.
        """
        if teams < 1 or self.size % teams:
            raise ValueError(f"{self.size} ranks cannot make {teams} teams of one size")
        ranks = torch.arange(self.size).reshape(teams, -1)
        return self._among(ranks.tolist()), self._among(ranks.T.tolist())

    def _among(self, parts: list[list[int]]) -> Group:
        """Return the group of the part that includes this rank."""
        own = next(part for part in parts if self.rank in part)
        if len(own) == self.size:
            return self
        group = Group(timeout=self._timeout, here=self.here)
        group.rank, group.size = own.index(self.rank), len(own)
        group._name = self._name
        if group.size > 1:
            subgroups = dist.new_subgroups_by_enumeration
            limit = timedelta(seconds=self._timeout)
            group._members, _ = subgroups(parts, timeout=limit)
            group._patient, _ = subgroups(parts, timeout=_PATIENT, backend="gloo")
        return group

    @property
    def first(self) -> bool:
        """True on the rank that writes, prints and decides."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors, bitwise equal on every rank."""
        if self.size == 1:
            return x
        total = x.detach().clone(memory_format=torch.contiguous_format)
        with self._collective("all-reduce"):
            dist.all_reduce(total, group=self._members)
        return total

    def gather(self, x: Tensor, counts: Sequence[int], *, dim: int = -1) -> Tensor:
        """Concatenate all ranks' tensors along one dim, in the order of ranks.

        ``counts`` are their lengths there; all other dims agree.
        """
        if self.size == 1:
            return x
        own = x.detach().movedim(dim, 0)
        width = max(counts)
        sent = own.new_zeros(width, *own.shape[1:])
        sent[: len(own)] = own
        received = [torch.empty_like(sent) for _ in counts]
        with self._collective("all-gather"):
            dist.all_gather(received, sent, group=self._members)
        parts = [part[:count] for part, count in zip(received, counts, strict=True)]
        return torch.cat(parts).movedim(0, dim).contiguous()

    def share(self, count: int) -> tuple[slice, list[int]]:
        """Return this rank's run of ``count`` items, and the number on every rank."""
        cuts = [count * rank // self.size for rank in range(self.size + 1)]
        counts = [b - a for a, b in itertools.pairwise(cuts)]
        return slice(cuts[self.rank], cuts[self.rank + 1]), counts

    def agree(self, flag: bool) -> bool:
        """Return True if the flag is set on any rank; all ranks agree."""
        return any(self.numbers(int(flag)))

    def numbers(self, own: int) -> list[int]:
        """Return every rank's integer (64 bits)."""
        if self.size == 1:
            return [own]
        mine = torch.tensor([own], dtype=torch.int64)
        return self.gather(mine, [1] * self.size).tolist()

    def require_alike(self, what: str, *tensors: Tensor) -> None:
        """Raise a RuntimeError unless tensors are bitwise equal on all ranks.

        Ranks compare checksums (CRC-32), sending 8 bytes.
        """
        if self.size == 1:
            return
        digest = 0
        for tensor in tensors:
            content = tensor.detach().cpu().contiguous().reshape(-1)
            digest = zlib.crc32(content.view(torch.uint8).numpy().data, digest)
        found = self.numbers(digest)
        apart = [rank for rank, value in enumerate(found) if value != found[0]]
        if apart:
            raise RuntimeError(
                f"{what} is another on rank {', '.join(map(str, apart))} than on rank "
                "0: the processes no longer compute the same. Run all of them on "
                "processors and devices of one kind with one number of threads "
                "(OMP_NUM_THREADS), with the same versions of this program and torch"
            )

    def meet(self) -> None:
        """Wait without a timeout until all ranks are here."""
        if self.size > 1:
            with self._collective("waiting"):
                dist.barrier(group=self._patient)

    def from_first(self, make: Callable[[], T]) -> T:
        """Return the result of ``make`` on rank 0, on all ranks, without a timeout.

        The result is sent pickled from rank 0 to the others.

        Raises a Exception on rank 0 any exception of ``make``; the other ranks then
        raise PeerError.
        """
        if self.size == 1:
            return make()
        # An empty list means failure.
        made: list[list[T]] = [[]]
        try:
            if self.first:
                made = [[make()]]
        finally:
            # Send even after a failure, or the others would wait forever.
            with self._collective("waiting"):
                dist.broadcast_object_list(made, group=self._patient, group_src=0)
        if not made[0]:
            raise PeerError(f"{self._name}: rank 0 failed, see its message")
        return made[0][0]

    @contextmanager
    def _collective(self, kind: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            reason = str(error).strip().splitlines()
            raise PeerError(
                f"{self._name}: another process ended or did not "
                f"answer within {self._timeout:.0f} s (in a collective, {kind}: "
                f"{reason[0] if reason else type(error).__name__})"
            ) from error
