"""Patching where a model calls the parts of a layer, not the layer, and where a library fuses them."""

import pytest
import torch
from torch import nn

import regard
from tests.observation import peers

WORDS, WIDTH, HEADS = 17, 14, 2


class Halved(nn.Module):
    """A layer whose two parts the model calls itself, as co-attention does: the layer as a whole never runs."""

    def __init__(self, width, heads):
        super().__init__()
        self.one = nn.MultiheadAttention(width, heads, batch_first=True)
        self.two = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        raise AssertionError("the model calls its parts")


def test_a_layer_whose_parts_are_called_is_patched_too():
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.ModuleList([Halved(WIDTH, HEADS) for _ in range(2)])
            self.first = nn.TransformerEncoderLayer(WIDTH, HEADS, 23, 0.0, batch_first=True)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, ids):
            x = self.first(self.embedding(ids))
            for layer in self.layers:
                x = x + layer.one(x, x, x)[0]
                x = x + layer.two(x, x, x)[0]
            return self.head(x)

    torch.manual_seed(5)
    model = Called().double().eval()
    clean, corrupted = torch.randint(WORDS, (2, 1, 7))
    with torch.no_grad(), regard.observe(model) as seen:
        model(clean)
    together, single = (seen.patch(clean, corrupted, together=count) for count in (None, 1))
    torch.testing.assert_close(together.values, single.values)
    assert len(together.names) == 5 and together.values.isfinite().all()


@pytest.mark.parametrize("fused", [True, False])
def test_timms_heads_are_patched_fused_or_written_out(fused):
    model = peers.small_of_timm()
    for block in model.blocks:
        block.attn.fused_attn = fused
    clean, corrupted = torch.randn(2, 1, 3, 20, 20).unbind()
    with torch.no_grad():
        better = int((model(clean) - model(corrupted)).argmax())  # a class whose logit the clean picture raises
    with regard.observe(model) as seen, torch.no_grad():
        model(clean)
    found = seen.patch(clean, corrupted, at="attention", positions="all", answer=better)
    kept = []
    hook = model.blocks[0].attn.register_forward_hook(lambda module, given, output: kept.append(output))
    model(clean)
    hook.remove()
    hook = model.blocks[0].attn.register_forward_hook(lambda module, given, output: kept[0])
    assert found.values[0].item() == pytest.approx(model(corrupted)[0, better].item(), rel=1e-4)
    hook.remove()
    assert found.recovered.isfinite().all()
