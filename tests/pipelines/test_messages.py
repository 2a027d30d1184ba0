"""What a fit says of itself at its end."""

import pytest
import torch

from pipelines.run.assessment import describe_support


@pytest.mark.parametrize(
    ("cells", "said"),
    [(50, "cross 50% of the cells"), (2, "cross 2.0% of the cells")],
)
def test_how_much_of_the_map_is_prior_is_said(cells, said):
    support = torch.zeros(4, 5, 5)
    support.view(-1)[:cells] = 0.25
    text = describe_support(support)
    assert said in text
    assert ("data.max_distance" in text) == (cells == 2)
