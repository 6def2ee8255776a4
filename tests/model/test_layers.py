"""The layers that more than one architecture uses."""
from __future__ import annotations

import pytest
import torch

from paged_edu.model.layers import ACTIVATIONS, Conv1D, activation


def test_conv1d_is_stored_in_by_out() -> None:  # B86
    def apply(weight: list[list[float]], bias: list[float], x: list[float]) -> list[float]:
        layer = Conv1D(len(weight), len(bias))
        layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
        with torch.no_grad():
            return layer(torch.tensor([x])).tolist()[0]

    assert apply([[1.0, 2, 3], [4, 5, 6]], [0.5, 0, 0], [1.0, 1]) == [5.5, 7, 9]
    assert apply([[1.0, 2], [3, 4]], [0.0, 0], [1.0, 0]) == [1, 2]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_equal_transformers(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(activation(name)(x), ACT2FN[name](x), rtol=0, atol=1e-9)
