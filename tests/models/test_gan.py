"""The model `gan`: self-attention and losses by hand, what each player learns from, spectral normalisation."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import regard
from regard.errors import BadValue
from regard.observation.coverage import PartialView
from regard_workbench import models
from regard_workbench.models.gan import Scored
from regard_workbench.models.parts.adversaries import ClassNorm, Discriminator, attending, scales, widths
from regard_workbench.models.parts.place_attention import PlaceAttention
from regard_workbench.tasks import Batch, OneOf, Problem, Stream, Tokens, Vectors
from regard_workbench.tasks.answers import MadePicture

CLASSES, NOISE = 3, 5
PROBLEM = Problem({"class": Tokens(CLASSES, length=1), "noise": Vectors(NOISE, 1)}, MadePicture(1, 8, 12))


def batch(size=7, problem=PROBLEM):
    generator = torch.Generator().manual_seed(11)
    labels = torch.arange(size)[:, None] % CLASSES
    noise = torch.randn(size, 1, NOISE, generator=generator)
    answer = problem.answer
    real = torch.rand(size, answer.channels, answer.height, answer.width, generator=generator)
    return Batch({"class": Stream(labels), "noise": Stream(noise)}, {"picture": Stream(real)})


def built(name="gan", seed=3, problem=PROBLEM, **options):
    torch.manual_seed(seed)
    return models.build(name, problem, **{"dim": 16, **options})


def test_places_attend_as_in_the_paper():
    """o_j = W_v Σ_i β_ji W_h x_i with β_ji = softmax over i of (W_f x_i)·(W_g x_j); y = γ o + x."""
    torch.manual_seed(5)
    layer = PlaceAttention(24).double()
    nn.init.constant_(layer.gamma, 0.7)
    for one in layer.attention.children():
        nn.init.normal_(one.bias)
    maps = torch.randn(2, 24, 3, 5, dtype=torch.float64)
    query, key, value, out = (
        (one.weight.detach().numpy(), one.bias.detach().numpy())
        for one in (
            layer.attention.query_map,
            layer.attention.key_map,
            layer.attention.value_map,
            layer.attention.output_map,
        )
    )
    assert query[0].shape == key[0].shape == value[0].shape == (3, 24), "an eighth of the channels"
    expected = np.empty((2, 24, 15))
    for b, x in enumerate(maps.flatten(2).numpy()):
        f, g, h = (m[0] @ x + m[1][:, None] for m in (key, query, value))
        for j in range(15):
            scores = [math.exp(sum(f[c, i] * g[c, j] for c in range(3))) for i in range(15)]
            mixed = sum(scores[i] / sum(scores) * h[:, i] for i in range(15))
            expected[b, :, j] = x[:, j] + 0.7 * (out[0] @ mixed + out[1])
    assert np.allclose(layer(maps).detach().flatten(2).numpy(), expected, atol=1e-12)


def test_attention_begins_by_adding_nothing_and_gamma_learns_at_once():
    model = built()
    for player in (model.generator, model.discriminator):
        maps = torch.randn(2, 16, 3, 5)
        assert torch.equal(player.places(maps), maps)
    outputs = model(batch())
    model.loss(outputs, batch())[0].backward()
    for player in (model.generator, model.discriminator):
        gamma = player.places.gamma
        assert gamma.tolist() == [0] and gamma.grad.tolist() != [0]


def test_the_loss_is_the_hinge_loss_of_both_players():
    model = built()
    outputs = Scored(
        torch.zeros(4, 1, 8, 12),
        torch.tensor([-3.0, -1.0, 0.5, 2.0]),
        torch.tensor([0.0, 0.25, 1.0, 4.0]),
        torch.tensor([-2.0, 0.5, 1.0, 3.5]),
    )
    total, count = model.loss(outputs, batch(4))
    told_made, told_real, fooled = 0 + 0 + 1.5 + 3, 1 + 0.75 + 0 + 0, -2 + 0.5 + 1 + 3.5
    assert float(total) == told_made + told_real - fooled and float(count) == 4
    each, ones = model.example_losses(outputs, batch(4))
    assert each.tolist() == [0 + 1 + 2, 0 + 0.75 - 0.5, 1.5 + 0 - 1, 3 + 0 - 3.5] and ones.tolist() == [1] * 4


def test_outside_of_training_the_loss_is_that_of_a_step_and_the_outputs_need_no_real_pictures():
    model, given = built().eval(), batch()
    outputs = model(given)
    assert outputs.real is None and outputs.fooled is None
    asked = model(Batch(given.streams))
    assert torch.equal(asked.pictures, outputs.pictures) and torch.equal(asked.made, outputs.made)
    labels = given.streams["class"].data[:, 0]
    real = model.discriminator(2 * given.targets - 1, labels)
    in_training = Scored(outputs.pictures, outputs.made, real, outputs.made)
    assert torch.allclose(model.loss(outputs, given)[0], model.loss(in_training, given)[0])


def test_each_player_learns_from_its_own_loss_alone():
    """The gradients of one step are those of two separate games: each with the other player's weights held fixed."""
    model = built().double()
    for player in (model.generator, model.discriminator):
        nn.init.constant_(player.places.gamma, 0.5)
    given, twin = (batch().map(lambda one: one.double() if one.is_floating_point() else one), copy.deepcopy(model))
    model.train()
    model.loss(model(given), given)[0].backward()

    labels, noise = given.streams["class"].data[:, 0], given.streams["noise"].data[:, 0]
    twin.train()
    made = twin.generator(noise, labels)
    own = list(twin.generator.parameters())
    real = torch.cat([made, 2 * given.targets - 1]), labels.repeat(2)
    of_generator = torch.autograd.grad(-twin.discriminator(*real)[:7].sum(), own, retain_graph=True)
    twin.discriminator.eval()  # the estimates of singular values have made their step
    scores = twin.discriminator(real[0].detach(), real[1])
    told = sum((1 + one).clamp(min=0) for one in scores[:7]) + sum((1 - one).clamp(min=0) for one in scores[7:])
    of_discriminator = torch.autograd.grad(told, list(twin.discriminator.parameters()))
    expected = dict(zip([id(one) for one in own], of_generator, strict=True))
    for ours, theirs in zip(model.generator.parameters(), own, strict=True):
        assert torch.allclose(ours.grad, expected[id(theirs)], atol=1e-12)
    for ours, theirs in zip(model.discriminator.parameters(), of_discriminator, strict=True):
        assert torch.allclose(ours.grad, theirs, atol=1e-12)
    assert all(float(one.grad.abs().sum()) > 0 for one in model.parameters())


def test_the_largest_singular_value_of_every_weight_of_both_players_is_one():
    model, given = built(), batch()
    model.train()
    with torch.no_grad():
        for _ in range(300):
            model(given)
    model.eval()
    for player in (model.generator, model.discriminator):
        layers = [one for one in player.modules() if isinstance(one, (nn.Conv2d, nn.Linear))]
        assert len(layers) > 8 and all(map(parametrize.is_parametrized, layers))
        for layer in layers:
            largest = torch.linalg.svdvals(layer.weight.detach().flatten(1))[0]
            assert float(largest) == pytest.approx(1, abs=0.02), layer
    embedded = model.discriminator.classes.weight.detach()
    assert float(torch.linalg.svdvals(embedded)[0]) == pytest.approx(1, abs=0.02)


def test_an_evaluation_changes_nothing_and_a_step_changes_the_estimates():
    model, given = built(), batch()
    before = copy.deepcopy(model.state_dict())
    model.eval()(given)
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in before.items())
    model.train()(given)
    changed = {
        name.rpartition(".")[2] for name, one in before.items() if not torch.equal(one, model.state_dict()[name])
    }
    assert changed == {"_u", "_v", "running_mean", "running_var", "num_batches_tracked"}


def test_the_sizes_of_the_maps_by_hand():
    assert scales(8, 8) == [(8, 8), (4, 4)] and attending([(8, 8), (4, 4)]) == 0
    assert scales(28, 28) == [(28, 28), (14, 14), (7, 7)] and attending(scales(28, 28)) == 1
    assert scales(64, 48) == [(64, 48), (32, 24), (16, 12), (8, 6)] and attending(scales(64, 48)) == 2
    assert scales(7, 31) == [(7, 31)] and attending(scales(7, 31)) == 0
    assert scales(31, 37) == [(31, 37)] and attending(scales(31, 37)) == 0, "the only one there is"
    assert widths(scales(64, 48), 24) == [6, 12, 24, 24] and widths(scales(8, 8), 24) == [24, 24]


@pytest.mark.parametrize(
    ("height", "width", "channels", "grid"), [(8, 12, 1, (8, 12)), (28, 28, 3, (14, 14)), (7, 7, 2, (7, 7))]
)
def test_pictures_have_the_size_that_is_asked_for_and_numbers_from_0_to_1(height, width, channels, grid):
    problem = Problem(PROBLEM.streams, MadePicture(channels, height, width))
    model = built(problem=problem)
    outputs = model.eval()(batch(5, problem))
    assert outputs.pictures.shape == (5, channels, height, width) and model.grid == grid
    pictures = outputs.pictures.detach()
    assert 0 <= float(pictures.min()) < float(pictures.max()) <= 1
    predicted = model.predict(outputs, batch(5, problem))
    assert np.allclose(predicted, pictures.numpy())


def test_the_class_is_heard_by_both_players():
    model = built().eval()
    noise, real = torch.randn(1, NOISE).expand(2, -1), torch.rand(1, 1, 8, 12).expand(2, -1, -1, -1)
    with torch.no_grad():
        model.generator.blocks[0].norms[0].shift.weight[1] += 1
        one, other = model.generator(noise, torch.tensor([0, 1]))
        assert not torch.allclose(one, other, atol=1e-4)
        scores = model.discriminator(real, torch.tensor([0, 1]))
        assert abs(float(scores[0] - scores[1])) > 1e-4


def test_class_norm_by_hand():
    layer = ClassNorm(2, CLASSES)
    nn.init.normal_(layer.gain.weight)
    nn.init.normal_(layer.shift.weight)
    maps, labels = torch.randn(5, 2, 3, 7), torch.tensor([0, 2, 1, 2, 0])
    mean = maps.mean((0, 2, 3), keepdim=True)
    spread = (maps.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    gain, shift = layer.gain.weight[labels], layer.shift.weight[labels]
    expected = gain[:, :, None, None] * (maps - mean) / spread + shift[:, :, None, None]
    assert torch.allclose(layer(maps, labels), expected, atol=1e-5)


def test_the_score_is_a_projection_on_the_class():
    player = Discriminator(scales(8, 8), 1, CLASSES, 16, None).eval()
    pictures, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 2, 1, 2, 0])
    maps = player.last(player.blocks[0](player.first(pictures)))
    whole = maps.clamp(min=0).sum((2, 3))
    expected = whole @ player.score.weight[0] + player.score.bias + (player.classes.weight[labels] * whole).sum(1)
    assert torch.allclose(player(pictures, labels), expected, atol=1e-5)


def test_without_self_attention_nothing_attends():
    model = built("gan(self_attention=false)")
    nothing = pytest.warns(PartialView, match="nothing was seen")
    with nothing, regard.observe(model) as seen, torch.no_grad():
        model.eval()(batch())
    assert not seen.names() and not model.shows
    with pytest.raises(BadValue, match="attention: there is no self-attention"):
        built("gan(self_attention=false)", attention="local")


@pytest.mark.parametrize("attention", ["multihead(num_heads=4)", "local(window=5)", "linear", "additive"])
def test_another_mechanism_attends_in_both_players_with_spectral_normalisation(attention):
    model = built(attention=attention)
    for player in (model.generator, model.discriminator):
        maps = [one for one in player.places.modules() if isinstance(one, nn.Linear)]
        assert all(map(parametrize.is_parametrized, maps))
        assert player.places.attention.entry.name == attention.partition("(")[0]
    outputs = model.train()(batch())
    model.loss(outputs, batch())[0].backward()
    assert all(one.grad is not None for one in model.generator.places.parameters())


def test_observe_sees_where_the_places_of_both_players_looked():
    model = built().eval()
    with regard.observe(model) as seen, torch.no_grad():
        model(batch())
    assert seen.names() == ["generator.places.attention", "discriminator.places.attention"]
    made, judged = (seen[name].weights() for name in seen.names())
    for weights in (made, judged):
        assert weights.shape == (7, 1, 96, 96)
        assert torch.allclose(weights.sum(-1), torch.ones(7, 1, 96), atol=1e-5)


def test_other_streams_are_refused_with_the_reason():
    longer = Problem({"class": Tokens(3, length=2), "noise": Vectors(NOISE, 1)}, MadePicture(1, 8, 8))
    with pytest.raises(BadValue, match="reads the class of a picture, and one row of noise"):
        models.build("gan", longer)
    with pytest.raises(BadValue, match="cannot answer with"):
        models.build("gan", Problem(PROBLEM.streams, OneOf(3)))
