"""The benchmark of ranks in its smallest size."""

import pytest
from test_bench import run

pytestmark = pytest.mark.slow


def test_ranks(tmp_path):
    tables = run("ranks", tmp_path)
    (one, two), gpus = tables.values()
    assert [one["ranks"], two["ranks"]] == [1, 2] and one["efficiency"] == 1
    # The vector over the torus in float32, once for every product.
    sent = two["sent per iteration [bytes]"]
    assert one["sent per iteration [bytes]"] == 0
    assert sent == 4 * two["M of the torus"]
    assert two["own W, largest [MiB]"] < 0.7 * one["own W, largest [MiB]"]
    assert two["residual"] == pytest.approx(one["residual"], rel=1e-3)
    assert {row["measured"] for row in gpus} == {"no: a model"}
    assert gpus[0]["efficiency"] == 1 > gpus[-1]["efficiency"] > 0
