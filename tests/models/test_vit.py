"""`vit` against torch's own layers with the same weights, and divided attention against brute force."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.errors import BadValue
from regard_workbench import models
from regard_workbench.tasks import Batch, EachOf, OneOf, Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import cut

DIM, HEADS, CLASSES, B = 20, 5, 7, 3
PICTURE = Patches.of(channels=3, height=8, width=12, side=4)
VIDEO = Patches.of(channels=1, height=8, width=12, side=4, frames=5)


def small(spec, answer=None, **options):
    torch.manual_seed(3)
    problem = Problem.of(spec, answer or OneOf(CLASSES))
    return models.build("vit", problem, dim=DIM, num_heads=HEADS, layers=2, **options).double().eval()


def pictures(spec, seed=1):
    shape = (spec.channels, spec.rows * spec.side, spec.columns * spec.side)
    shape = shape if spec.frames == 1 else (spec.frames, *shape)
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(spec, seed=1):
    return Batch.of(cut(pictures(spec, seed), spec), targets=torch.tensor([2, 0, 6]))


def torch_layer(layer):
    """torch's encoder layer with our weights."""
    made = torch.nn.TransformerEncoderLayer(
        DIM, HEADS, 4 * DIM, 0.0, "gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    ours = layer.attention
    maps = [ours.query_map, ours.key_map, ours.value_map]
    with torch.no_grad():
        made.self_attn.in_proj_weight.copy_(torch.cat([one.weight for one in maps]))
        made.self_attn.in_proj_bias.copy_(torch.cat([one.bias for one in maps]))
        for mine, other in (
            (ours.output_map, made.self_attn.out_proj),
            (layer.feed_forward.rise, made.linear1),
            (layer.feed_forward.fall, made.linear2),
            (layer.around_attention.norm, made.norm1),
            (layer.around_feed_forward.norm, made.norm2),
        ):
            other.load_state_dict(mine.state_dict())
    return made.train()  # the slow path; without dropout it is the same


@pytest.mark.parametrize("pool", ["mean", "class"])
@pytest.mark.parametrize("patch", [4, 2])
def test_a_vit_is_torchs_encoder_over_patches_cut_by_a_convolution(pool, patch):
    model = small(PICTURE, pool=pool, patch=patch)
    kernel = model.embedding.rows.weight.view(DIM, 3, patch, patch)
    maps = F.conv2d(pictures(PICTURE), kernel, model.embedding.rows.bias, stride=patch)
    rows = maps.flatten(2).transpose(1, 2) + model.places.table
    if pool == "class":
        rows = torch.cat([rows, model.token.expand(B, 1, DIM)], 1)  # behind the patches: the order cannot matter
    for layer in model.layers:
        rows = torch_layer(layer)(rows)
    rows = F.layer_norm(rows, (DIM,), model.norm.weight, model.norm.bias)
    expected = (rows[:, -1] if pool == "class" else rows.mean(1)) @ model.head.logits.weight.T + model.head.logits.bias
    assert torch.allclose(model(batch(PICTURE)), expected, atol=1e-12)


def attended(layer, rows, visible):
    """Attention by the formula: every pair of rows that `visible(i, j)` allows, one query and head at a time."""
    query, key, value = (one(rows) for one in (layer.query_map, layer.key_map, layer.value_map))
    width, found = DIM // HEADS, torch.zeros_like(rows)
    for b in range(len(rows)):
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            for i in range(rows.shape[1]):
                seen = [j for j in range(rows.shape[1]) if visible(i, j)]
                scores = key[b, seen][:, part] @ query[b, i, part] / width**0.5
                found[b, i, part] = scores.softmax(0) @ value[b, seen][:, part]
    return layer.output_map(found)


@pytest.mark.parametrize("pool", ["mean", "class"])
@torch.no_grad()
def test_each_layer_attends_over_time_and_then_over_space(pool):
    model = small(VIDEO, pool=pool)
    places, patches = 6, 30
    rows = model.embedding(batch(VIDEO).inputs)
    rows = rows + model.places.table.repeat(5, 1) + model.times.table.repeat_interleave(places, 0)
    if pool == "class":
        rows = torch.cat([rows, model.token.expand(B, 1, DIM)], 1)
    for layer in model.layers:
        among = rows[:, :patches]
        time = attended(layer.time, layer.around_time.norm(among), lambda i, j: i % places == j % places)
        rows = torch.cat([among + time, rows[:, patches:]], 1)
        space = attended(
            layer.attention,
            layer.around_attention.norm(rows),
            lambda i, j: i // places == j // places or patches in (i, j),
        )
        rows = rows + space
        rows = rows + layer.feed_forward(layer.around_feed_forward.norm(rows))
    rows = model.norm(rows)
    pooled = rows[:, patches] if pool == "class" else rows.mean(1)
    assert torch.allclose(model(batch(VIDEO)), model.head.logits(pooled), atol=1e-12)


def test_divided_attention_is_seen_as_patches_by_patches():
    model = small(VIDEO)
    with regard.observe(model) as seen:
        model(batch(VIDEO))
    assert seen.names() == [f"layers.{n}.{part}" for n in (0, 1) for part in ("time", "attention")]
    index = torch.arange(30)
    same_place = (index[:, None] - index) % 6 == 0
    same_frame = index[:, None] // 6 == index // 6
    for name, visible in (("layers.1.time", same_place), ("layers.1.attention", same_frame)):
        weights = seen[name].weights()
        assert weights.shape == (B, HEADS, 30, 30)
        assert (weights[..., ~visible] == 0).all() and (weights[..., visible] > 0).all()
        assert torch.allclose(weights.sum(-1), torch.ones(()).to(weights))


def test_joint_attention_sees_all_frames_at_once():
    model = small(VIDEO, over_time="joint")
    with regard.observe(model) as seen:
        model(batch(VIDEO))
    assert seen.names() == ["layers.0.attention", "layers.1.attention"]
    assert (seen["layers.0.attention"].weights() > 0).all()


def test_rows_are_those_of_the_patches():
    for pool in ("mean", "class"):
        assert small(PICTURE, EachOf(4), pool=pool)(batch(PICTURE)).shape == (B, 6, 4)
    with pytest.raises(BadValue, match="patch: the task asks for a row for each of its own patches"):
        small(PICTURE, EachOf(4), patch=2)


def test_every_weight_learns():
    for spec in (PICTURE, VIDEO):
        for pool in ("mean", "class"):
            model, given = small(spec, pool=pool), batch(spec)
            model.loss(model(given), given)[0].backward()
            assert not [name for name, weight in model.named_parameters() if weight.grad is None]


def test_positions_are_named_as_the_model_cuts_them():
    shown = Shown("x", ["0,0"] * 6, "patches", grid=(2, 3))
    assert small(PICTURE).relabel(shown).pieces == shown.pieces
    found = small(PICTURE, patch=2, pool="class").relabel(shown)
    assert found.grid == (4, 6) and found.pieces[8] == "1,1" and found.pieces[0] == "CLS" and len(found.pieces) == 25


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool": "max"}, "pool: expected mean or class"),
        ({"over_time": "late"}, "over_time: expected divided or joint"),
        ({"patch": 5}, "patch: expected a side that divides"),
        ({"layers": 0}, "layers"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(BadValue, match=words):
        models.build("vit", Problem.of(PICTURE, OneOf(3)), **options)


@pytest.mark.parametrize("spec", [PICTURE, VIDEO])
def test_a_stem_of_convolutions_reads_each_frame_by_itself_across_the_borders_of_patches(spec):
    model = small(spec, stem=5)
    given = cut(pictures(spec), spec)
    rows = model.embedding(given)
    places = spec.rows * spec.columns
    for frame in range(spec.frames):
        here = slice(frame * places, (frame + 1) * places)
        assert torch.equal(model.embedding.features(given[:, here])[0], rows[:, here])
    changed = given.clone()
    changed[:, 0, spec.side - 1] += 1  # the pixel in the upper right corner of the first patch
    moved = (model.embedding(changed) - rows).abs().amax((0, 2)) > 0
    assert moved[:2].all() and not moved[places:].any()
    linear = small(spec).embedding
    assert ((linear(changed) - linear(given)).abs().amax((0, 2)) > 0).tolist() == [True] + [False] * (
        spec.frames * places - 1
    )


def test_every_weight_of_a_vit_with_a_stem_has_a_gradient():
    model = small(PICTURE, stem=5).train()
    model(batch(PICTURE)).logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_wrong_stem_is_named():
    with pytest.raises(BadValue, match="stem"):
        small(PICTURE, stem=-1)
