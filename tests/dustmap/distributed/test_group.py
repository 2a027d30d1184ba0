"""Collectives of real processes, and what the others say when one of them ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from ranks import on_ranks, start

from dustmap.distributed.group import Group, PeerError


def _collectives(group: Group) -> dict[str, object]:
    rank = group.rank
    lengths = [2, 0, 3]
    own = torch.arange(lengths[rank]) + 10.0 * rank
    sent = [rank + to for to in range(3)]
    parts = torch.cat([torch.full((n,), 10.0 * rank + k) for k, n in enumerate(sent)])
    received = [rank + frm for frm in range(3)]
    return {
        "sum": group.sum(torch.tensor([[1.0, rank], [0.5, 2.0]]).mT),
        "gather": group.gather(torch.stack([own, -own]), lengths),
        "rows": group.gather(torch.stack([own, -own], dim=1), lengths, dim=0),
        "exchange": group.exchange(parts, sent, received),
        "complex": group.exchange(parts * (1 + 2j), sent, received),
        "any": (group.agree(rank == 2), group.agree(False)),
        "numbers": group.numbers(-rank),
        "text": group.from_first(lambda: "α β" if group.first else "never"),
        "empty": group.from_first(lambda: ""),
        "bytes": group.traffic.bytes["all-reduce"],
    }


@pytest.fixture(scope="module")
def collectives() -> list[dict[str, object]]:
    return on_ranks(_collectives, 3)


def test_sums_and_gathers_are_the_same_on_all_ranks(
    collectives: list[dict[str, object]],
) -> None:
    gathered = torch.tensor([0.0, 1.0, 20.0, 21.0, 22.0])
    for found in collectives:
        assert torch.equal(found["sum"], torch.tensor([[3.0, 1.5], [3.0, 6.0]]))
        assert torch.equal(found["gather"], torch.stack([gathered, -gathered]))
        assert torch.equal(found["rows"], torch.stack([gathered, -gathered], dim=1))
        assert found["any"] == (True, False)
        assert found["numbers"] == [0, -1, -2]
        assert found["text"] == "α β" and found["empty"] == ""
        assert found["bytes"] == 16


def test_exchange_sends_every_rank_its_part(
    collectives: list[dict[str, object]],
) -> None:
    for rank, found in enumerate(collectives):
        expected = torch.cat(
            [torch.full((rank + frm,), 10.0 * frm + rank) for frm in range(3)]
        )
        assert torch.equal(found["exchange"], expected)
        assert torch.equal(found["complex"], expected * (1 + 2j))


def _parted(group: Group) -> str:
    same = torch.linspace(0, 1, 7, dtype=torch.float64)
    group.require_alike("the same", same, torch.arange(3))
    other = same.clone()
    other[3] += 1e-16 * (group.rank == 1)
    try:
        group.require_alike("ε", other)
    except RuntimeError as error:
        return str(error)
    return "not noticed"


def test_ranks_that_have_parted_are_named() -> None:
    for message in on_ranks(_parted, 3):
        assert message.startswith("ε is another on rank 1 than on rank 0")
        assert "OMP_NUM_THREADS" in message


def _failing(group: Group) -> str:
    def text() -> str:
        raise ValueError("bad input")

    try:
        group.from_first(text)
    except (ValueError, PeerError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_what_fails_on_rank_0_ends_the_others() -> None:
    first, second = on_ranks(_failing, 2)
    assert first == "ValueError: bad input"
    assert second == "PeerError: rank 1 of 2: rank 0 failed, see its message"


def _summing(group: Group, place: Path) -> None:
    for number in range(100_000):
        group.sum(torch.ones(1000, dtype=torch.float64))
        if number == 10:
            (place / f"busy{group.rank}").touch()


def test_ranks_end_with_a_message_when_one_is_killed(tmp_path: Path) -> None:
    ranks = start(_summing, 3, tmp_path, tmp_path, timeout=20.0)
    _wait_for([tmp_path / f"busy{rank}" for rank in range(3)])
    assert ranks[1].pid is not None
    os.kill(ranks[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    for process in ranks:
        process.join(60.0)
    taken = time.monotonic() - killed
    alive = [process.is_alive() for process in ranks]
    for process in ranks:
        process.kill()
    assert not any(alive) and taken < 60.0
    assert [process.exitcode for process in ranks] == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        text = (tmp_path / f"{rank}.failed").read_text()
        assert f"rank {rank} of 3: another process ended or did not answer" in text


def _wait_for(paths: list[Path], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end, f"waited {seconds} s for {paths}"
        time.sleep(0.02)


def test_one_process_sends_nothing() -> None:
    alone = Group()
    x = torch.arange(3.0)
    assert alone.sum(x) is x and alone.gather(x, [3]) is x
    assert alone.agree(True) and not alone.agree(False)
    assert alone.from_first(lambda: "said") == "said"
    alone.require_alike("x", x)
    alone.meet()
    assert not alone.traffic.calls
