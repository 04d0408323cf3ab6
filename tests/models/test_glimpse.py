"""The model `glimpse`: its sensor by slicing, its policy's gradient by enumerating all places."""

import itertools

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard.nn.parts import loss_terms
from regard_workbench import models, tasks
from regard_workbench.inspection import inspection
from regard_workbench.models.parts.retina import Retina
from regard_workbench.tasks import Batch, OneOf, Problem
from regard_workbench.tasks.answers import OneOfAfterEach
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import cut

SPEC = Patches.of(channels=2, height=10, width=15, side=5)  # 2 × 3 places
CLASSES = 7


def built(answer=None, **options):
    torch.manual_seed(11)
    sizes = {"dim": 13, "glimpses": 2, "side": 4, "scales": 2}
    problem = Problem.of(SPEC, answer or OneOfAfterEach(CLASSES))
    return models.build("glimpse", problem, **{**sizes, **options}).double()


def pictures(count=3):
    made = torch.rand(count, 2, 10, 15, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    targets = torch.arange(count) % CLASSES
    return Batch.of(cut(made, SPEC), targets=targets)


def by_slicing(picture, place, side, scales):
    """A glimpse, pixel by pixel: a pixel of scale k is the mean of 2^k × 2^k pixels; outside they are 0."""
    channels, height, width = picture.shape
    row, column = divmod(place, SPEC.columns)
    found = np.zeros((scales, channels, side, side))
    for scale in range(scales):
        size = 2**scale
        top = row * SPEC.side + SPEC.side // 2 - side * size // 2
        left = column * SPEC.side + SPEC.side // 2 - side * size // 2
        for c, y, x, dy, dx in itertools.product(range(channels), range(side), range(side), range(size), range(size)):
            at = top + y * size + dy, left + x * size + dx
            inside = 0 <= at[0] < height and 0 <= at[1] < width
            found[scale, c, y, x] += picture[c, at[0], at[1]] / size**2 if inside else 0
    return found


@pytest.mark.parametrize(("side", "scales"), [(4, 3), (3, 2), (5, 1)])
def test_a_glimpse_is_squares_around_the_centre_of_a_patch(side, scales):
    picture = torch.rand(2, 10, 15, dtype=torch.float64)
    places = torch.arange(6)
    found = Retina(SPEC, side, scales)(picture.expand(6, -1, -1, -1), places)
    for place in range(6):
        expected = by_slicing(picture.numpy(), place, side, scales)
        np.testing.assert_allclose(found[place].numpy(), expected, atol=1e-12)


def test_the_policy_learns_along_the_gradient_of_the_expected_loss():
    """Over all 6 × 6 choices, the offered terms weighted by probability give the gradient of the expected loss."""
    model, batch = built(entropy_weight=0.0).train(), pictures()
    scores = [*model.policy.query_map.parameters(), *model.policy.key_map.parameters()]
    choose, expected, offered_gradient = model.policy.choose_place, 0.0, [torch.zeros_like(p) for p in scores]
    model.policy.reinforce.baseline.average.fill_(-0.83)  # a baseline changes no expectation
    for sequence in itertools.product(range(6), repeat=2):
        steps, chances = iter(sequence), []

        def forced(query, places, index, steps=steps, chances=chances):
            choice = choose(query, places, torch.full((len(query),), next(steps)))
            chances.append(choice.log_prob[:, 0, 0])
            return choice

        model.policy.choose_place = forced
        with loss_terms.collecting() as offered:
            outputs = model(batch)
        losses, counts = model.example_losses(outputs, batch)
        chance = sum(chances).exp()
        expected = expected + (chance * losses).sum()
        # Each example has its own probability of this sequence: take its gradient alone.
        for row in range(batch.size):
            weight = torch.zeros_like(losses)
            weight[row] = 1.0
            only = sum(term(losses * weight, counts * weight) for term in offered)  # others: (0 − 0·b) · log p
            found = torch.autograd.grad(only, scores, retain_graph=True, allow_unused=True)
            for total, part in zip(offered_gradient, found, strict=True):
                if part is not None:
                    total += chance[row].detach() * part
    direct = torch.autograd.grad(expected, scores, allow_unused=True)
    for mine, other in zip(offered_gradient, direct, strict=True):
        other = torch.zeros_like(mine) if other is None else other
        torch.testing.assert_close(mine, other, atol=1e-7, rtol=1e-5)  # losses are float32
    assert max(float(part.abs().max()) for part in offered_gradient) > 1e-3


def test_the_dense_choice_is_that_of_hard_attention():
    policy = built().policy
    query, places = torch.randn(5, 13, dtype=torch.float64), torch.randn(6, 13, dtype=torch.float64)
    index = torch.tensor([3, 0, 5, 1, 3])
    choice = policy.choose_place(query, places, index)
    expected, other = policy.choose(query[None], places[None], index=index[None, None])
    torch.testing.assert_close(policy.chosen_rows(places, choice), expected[0])
    for name in ("log_prob", "entropy"):
        mine, theirs = getattr(choice, name)[:, 0, 0], getattr(other, name)[0, 0]
        torch.testing.assert_close(mine.double(), theirs.double(), atol=1e-6, rtol=1e-5)
    best = policy.eval().choose_place(query, places).index[:, 0, 0]
    assert torch.equal(best, policy.weights(query[None], places[None])[0, 0].argmax(-1))


def test_places_are_sampled_as_often_as_they_are_likely():
    policy = built().policy.train()
    query, places = torch.randn(1, 13, dtype=torch.float64), 3 * torch.randn(6, 13, dtype=torch.float64)
    torch.manual_seed(4)
    many = policy.choose_place(query.expand(20_000, -1), places)
    chance = torch.stack(
        [policy.choose_place(query, places, torch.tensor([n])).log_prob.exp().flatten() for n in range(6)]
    )
    counted = torch.bincount(many.index.flatten(), minlength=6) / 20_000
    torch.testing.assert_close(counted.double(), chance.detach().flatten().double(), atol=0.015, rtol=0)


def test_the_network_remembers_without_gradient_of_the_policy():
    model, batch = built().train(), pictures()
    with loss_terms.collecting() as offered:
        outputs = model(batch)
    losses, counts = model.example_losses(outputs, batch)
    sum(term(losses, counts) for term in offered).backward()
    assert all(p.grad is None for p in [*model.core.parameters(), *model.what.parameters()])


@pytest.mark.parametrize("policy", ["learned", "random", "centre"])
def test_a_picture_is_looked_at_in_the_same_way_alone_and_among_others(policy):
    model, batch = built(policy=policy).eval(), pictures(5)
    together = model(batch)
    for row in range(5):
        alone = model(batch.rows([row]))
        assert torch.equal(alone.places[0], together.places[row])
        torch.testing.assert_close(alone.logits[0], together.logits[row])


def test_random_places_differ_between_pictures_and_centre_is_the_middle():
    places = built(policy="random", glimpses=31).eval()(pictures(17)).places
    assert len(places.unique()) == 6 and (places[0] != places[1]).any()
    assert (built(policy="centre").eval()(pictures()).places == 1 * 3 + 1).all()
    drawn = built(policy="random", glimpses=31).train()(pictures(17)).places
    assert len(drawn.unique()) == 6 and drawn.max() < 6


def test_in_evaluation_the_likeliest_place_is_chosen():
    model = built().eval()
    found = model(pictures())
    first = model.policy.weights(model.start[None, None], model.places()[None])[0, 0, 0]
    assert first.sum() == 1 and (found.places[:, 0] == first.argmax()).all()


def test_the_loss_is_the_mean_over_glimpses_and_the_answer_that_of_the_last():
    model, batch = built(glimpses=3).eval(), pictures(4)
    with torch.no_grad():
        outputs = model(batch)
        total, count = model.loss(outputs, batch)
    by_hand = 0.0
    for row, target in enumerate(batch.targets.tolist()):
        for glimpse in range(3):
            by_hand -= float(outputs.logits[row, glimpse].log_softmax(-1)[target]) / 3
    assert float(total) == pytest.approx(by_hand) and float(count) == 4
    for row, said in enumerate(model.predict(outputs, batch)):
        assert said["class"] == int(outputs.logits[row, -1].argmax()) == said["after_each"][-1]
        assert said["places"] == [divmod(int(place), 3) for place in outputs.places[row]]


def test_a_problem_of_one_class_gets_the_last_logits():
    many, one = built(glimpses=3).eval(), built(OneOf(CLASSES), glimpses=3).eval()
    one.load_state_dict(many.state_dict())
    torch.testing.assert_close(one(pictures()), many(pictures()).logits[:, -1])


def test_an_unknown_policy_is_refused():
    with pytest.raises(BadValue, match="policy: there is no 'best'"):
        built(policy="best")


@pytest.mark.parametrize("policy", ["random", "centre"])
def test_a_policy_without_weights_is_inspected_and_says_so(policy):
    task = tasks.build("glimpse(canvas=24, smallest=12, largest=12, clutter=1)")
    model = models.build(f"glimpse(dim=16, glimpses=2, policy={policy})", task.problem).eval()
    found = inspection.inspect_model(model, task)
    assert not found.attributions and "no single gradient" in " ".join(found.missing)
