"""The held-out figure counts every token once; a folder without a model is refused."""
import math
import types

import pytest
import torch

from paged_edu.model import held_out


@pytest.mark.parametrize("length", [2, 5, 8, 9, 12, 13, 16, 17, 40])
def test_every_token_is_scored_once_with_enough_context(length):
    """A model whose loss at a position is the position's own number: the sum says which positions were scored, and how often."""
    ids = torch.arange(length) % 7
    seen = []

    class Model(torch.nn.Module):
        def forward(self, chunk):
            start = 0 if not seen else seen[-1] + 4
            seen.append(start)
            logits = torch.zeros(1, chunk.shape[1], 7)
            for i in range(chunk.shape[1] - 1):
                logits[0, i, chunk[0, i + 1]] = float(start + i)     # a loss that depends on where the window lies
            return types.SimpleNamespace(logits=logits)

    figure = held_out.nats_per_character(Model(), ids, 1, window=8, stride=4)
    expected = sum(math.log(6 + math.exp(p)) - p for p in range(length - 1))
    assert figure == pytest.approx(expected, rel=1e-6)


def test_a_uniform_model_costs_log_v_a_token():
    class Uniform(torch.nn.Module):
        def forward(self, chunk):
            return types.SimpleNamespace(logits=torch.zeros(1, chunk.shape[1], 50))

    assert held_out.nats_per_character(Uniform(), torch.zeros(2000, dtype=torch.int64), 4000) == pytest.approx(math.log(50) * 1999 / 4000)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ValueError, match=r"no config.json"):
        held_out.load(tmp_path / "nosuch")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="can't be loaded") as caught:
        held_out.load(tmp_path)
    assert "\n" not in str(caught.value)
