"""Collectives of real processes, and what the others say when one of them ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from ranks import on_ranks, start

from dustmap.distributed.group import Group, PeerError


def _collectives(group: Group) -> dict[str, object]:
    rank = group.rank
    lengths = [2, 0, 3]
    own = torch.arange(lengths[rank]) + 10.0 * rank
    return {
        "sum": group.sum(torch.tensor([[1.0, rank], [0.5, 2.0]]).mT),
        "gather": group.gather(torch.stack([own, -own]), lengths),
        "rows": group.gather(torch.stack([own, -own], dim=1), lengths, dim=0),
        "any": (group.agree(rank == 2), group.agree(False)),
        "numbers": group.numbers(-rank),
        "text": group.from_first(lambda: "α β" if group.first else "never"),
        "empty": group.from_first(lambda: ""),
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
        assert "ε" in message and "rank 1" in message


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
    assert second.startswith("PeerError") and "rank 0" in second


def _outliving(group: Group) -> None:
    group.meet()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.sum(torch.ones(1000, dtype=torch.float64))


def test_ranks_end_with_a_message_when_one_is_killed(tmp_path: Path) -> None:
    ranks = start(_outliving, 3, tmp_path, timeout=20.0)
    for process in ranks:
        process.join(60.0)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert codes == [1, -signal.SIGKILL, 1]
    for rank in (0, 2):
        text = (tmp_path / f"{rank}.failed").read_text()
        assert f"rank {rank} of 3" in text and "PeerError" in text


def test_one_process_sends_nothing() -> None:
    alone = Group()
    x = torch.arange(3.0)
    assert alone.sum(x) is x and alone.gather(x, [3]) is x
    assert alone.agree(True) and not alone.agree(False)
    assert alone.from_first(lambda: "said") == "said"
    alone.require_alike("x", x)
    alone.meet()
