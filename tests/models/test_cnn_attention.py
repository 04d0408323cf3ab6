"""`cnn-attention`: its gates against their formulas, each attention switched off, and examples independent of their
batch."""

import pytest
import torch

import regard
from regard.errors import BadValue
from regard.nn.parts.gates import ChannelAttention, SpatialAttention
from regard_workbench import models
from regard_workbench.tasks import Batch, OneOf, Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches

PICTURE = Patches.of(channels=3, height=12, width=20, side=4)
PARTS = ("channel", "spatial", "self_attention")


def small(spec=PICTURE, **options):
    torch.manual_seed(3)
    return models.build("cnn-attention", Problem.of(spec, OneOf(7)), dim=32, **options).double().eval()


def batch(spec=PICTURE, size=3):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(size, spec.length, spec.width, generator=generator, dtype=torch.float64)
    return Batch.of(data, targets=torch.arange(size))


def test_channel_attention_weighs_each_channel_by_the_means_of_all():
    layer, maps = ChannelAttention(11, 2), torch.randn(2, 11, 5, 7)
    found = layer(maps)
    for b in range(2):
        means = torch.stack([maps[b, c].sum() / 35 for c in range(11)])
        inside = (layer.squeeze.weight @ means + layer.squeeze.bias).clamp(min=0)
        gate = 1 / (1 + torch.exp(-(layer.excite.weight @ inside + layer.excite.bias)))
        for c in range(11):
            assert torch.allclose(found[b, c], gate[c] * maps[b, c], atol=1e-6)


def test_spatial_attention_weighs_each_place_by_mean_and_maximum_around_it():
    layer, maps = SpatialAttention(), torch.randn(2, 5, 6, 9)
    found, kernel = layer(maps), layer.look.weight[0]
    for b, y, x in ((0, 0, 0), (1, 3, 4), (0, 5, 8)):
        total = layer.look.bias[0].clone()
        for dy in range(-3, 4):
            for dx in range(-3, 4):
                if 0 <= y + dy < 6 and 0 <= x + dx < 9:
                    there = maps[b, :, y + dy, x + dx]
                    total += kernel[0, dy + 3, dx + 3] * there.mean() + kernel[1, dy + 3, dx + 3] * there.max()
        assert torch.allclose(found[b, :, y, x], maps[b, :, y, x] / (1 + torch.exp(-total)), atol=1e-6)


@pytest.mark.parametrize("left_out", [(), *((part,) for part in PARTS), PARTS])
def test_each_attention_can_be_left_out_and_every_weight_that_is_left_learns(left_out):
    model, given = small(**dict.fromkeys(left_out, False)), batch()
    logits = model(given)
    assert logits.shape == (3, 7)
    model.loss(logits, given)[0].backward()
    assert not [name for name, weight in model.named_parameters() if weight.grad is None]
    for part, word in zip(PARTS, (".channel.", ".spatial.", "layer."), strict=True):
        assert any(word in f".{name}" for name, _ in model.named_parameters()) == (part not in left_out)


def test_without_attention_it_is_a_plain_residual_network():
    model, given = small(**dict.fromkeys(PARTS, False)), batch()
    from regard_workbench.tasks.pictures.patches import fold

    maps = fold(given.inputs, PICTURE)
    maps = torch.relu(model.stem_norm(torch.nn.functional.conv2d(maps, model.stem.weight, padding=1)))
    for number, block in enumerate(model.blocks):
        stride = 2 if number else 1
        inside = torch.nn.functional.conv2d(maps, block.first.weight, stride=stride, padding=1)
        inside = torch.nn.functional.conv2d(torch.relu(block.norms[0](inside)), block.second.weight, padding=1)
        around = maps[:, :, ::stride, ::stride]
        if number:
            around = torch.einsum("oi,bihw->bohw", block.shortcut.weight[:, :, 0, 0], around)
        maps = torch.relu(around + block.norms[1](inside))
    assert torch.allclose(model(given), model.head.logits(maps.mean((2, 3))), atol=1e-12)


def test_an_example_does_not_depend_on_the_others_of_its_batch():
    model, given = small().train(), batch()
    model = models.build("cnn-attention", Problem.of(PICTURE, OneOf(7)), dim=32, dropout=0.0).double().train()
    together = model(given)
    for row in range(3):
        alone = model(Batch.of(given.inputs[row : row + 1]))
        assert torch.allclose(alone[0], together[row], atol=1e-10)


def test_self_attention_is_seen_over_the_places_of_the_last_stage():
    model = small()
    with regard.observe(model) as seen:
        model(batch())
    assert seen["layer.attention"].weights().shape == (3, 4, 15, 15)
    shown = Shown("x", ["a"] * 240, "patches", picture=torch.zeros(12, 20).numpy(), grid=(12, 20))
    found = model.relabel(shown)
    assert found.grid == (3, 5) and len(found.pieces) == 15 and found.pieces[7] == "1,2"


def test_the_frames_of_a_video_are_read_as_channels():
    spec = Patches.of(channels=1, height=8, width=8, side=4, frames=3)
    model = small(spec)
    assert model.stem.in_channels == 3 and model(batch(spec)).shape == (3, 7)


def test_another_attention_without_self_attention_is_refused():
    with pytest.raises(BadValue, match="attention: there is no self-attention"):
        small(self_attention=False, attention="linear")
    assert small(attention="linear")(batch()).shape == (3, 7)


def test_gates_are_seen_as_one_row_over_channels_and_one_over_places():
    model, given = small(self_attention=False), batch()
    with regard.observe(model) as seen:
        model(given)
    assert seen.names() == [f"blocks.{n}.{part}" for n in range(3) for part in ("channel", "spatial")]
    assert seen["blocks.0.spatial"].shape() == (3, 1, 1, 240) and seen["blocks.2.spatial"].shape() == (3, 1, 1, 15)
    maps = []
    handle = model.blocks[2].channel.register_forward_pre_hook(lambda _, inputs: maps.append(inputs[0]))
    model(given)
    handle.remove()
    block = model.blocks[2]
    assert torch.allclose(seen["blocks.2.channel"].weights()[:, 0, 0], block.channel.weights(maps[0]))
    gated = block.channel(maps[0])
    assert torch.allclose(seen["blocks.2.spatial"].weights()[:, 0, 0], block.spatial.weights(gated).flatten(1))
    assert seen["blocks.2.channel"].columns == "channel"
