"""FGSM and PGD against closed forms of a linear model, and against foolbox on the same network and budget."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from regard_workbench import models
from regard_workbench.attacks.ball import ball
from regard_workbench.attacks.pixels import fgsm, pgd, slope
from regard_workbench.tasks import Batch, OneOf
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors

EPS = 0.07


def linear(seed=0, pixels=11, classes=3, examples=5):
    """Weights, pictures away from black and white, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, pixels, generator=generator)
    pictures = 0.3 + 0.4 * torch.rand(examples, 1, pixels, generator=generator)
    return weight, pictures, torch.randint(classes, (examples,), generator=generator)


def two_classes(weight, labels):
    """The loss log(1 + exp(−y·w·x)) of two classes, which rises along −y·w at every x."""
    signs = 1.0 - 2.0 * labels

    def losses(points):
        return F.softplus(-signs * (points.flatten(1) @ weight))

    return losses, signs


def test_one_step_is_the_optimum_for_a_linear_model_in_both_norms():
    weight, pictures, labels = linear()
    weight = weight[0]
    losses, signs = two_classes(weight, labels % 2)
    best = {
        "linf": pictures - EPS * signs[:, None, None] * weight.sign(),
        "l2": pictures - EPS * signs[:, None, None] * weight / weight.norm(),
    }
    for norm, optimum in best.items():
        found = fgsm(losses, ball(norm, pictures, EPS))
        assert torch.allclose(found, optimum, atol=1e-6)
        # The logit moves by ε times the dual norm, and no other point of the ball moves it further.
        dual = weight.abs().sum() if norm == "linf" else weight.norm()
        moved = ((pictures - found).flatten(1) @ weight).abs()
        assert torch.allclose(moved, EPS * dual.expand(5), rtol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_many_steps_find_the_optimum_of_a_linear_model_from_any_start(norm):
    weight, pictures, labels = linear(1)
    losses, _ = two_classes(weight[0], labels % 2)
    around = ball(norm, pictures, EPS)
    once = fgsm(losses, around)
    for seed in range(3):
        start = around.random(torch.Generator().manual_seed(seed))
        assert torch.allclose(pgd(losses, around, 120, EPS / 8, start), once, atol=2e-5)


def test_the_optimum_at_black_and_white_is_cut_at_the_range_of_pixels():
    weight = torch.tensor([2.0, -1.0, 0.5])
    pictures = torch.tensor([[[0.0, 1.0, 0.02]]])
    losses, _ = two_classes(weight, torch.zeros(1))  # the loss rises along −w
    found = fgsm(losses, ball("linf", pictures, 0.1))
    assert torch.allclose(found, torch.tensor([[[0.0, 1.0, 0.0]]]))


def test_the_gradient_is_that_of_each_example_alone():
    weight, pictures, labels = linear(2)

    def losses(points):
        return F.cross_entropy(points.flatten(1) @ weight.T, labels, reduction="none")

    odds = (pictures.flatten(1) @ weight.T).softmax(1) - F.one_hot(labels, 3)
    assert torch.allclose(slope(losses, pictures)[:, 0], odds @ weight, atol=1e-6)


class Small(torch.nn.Module):
    """A network that is not linear, on pictures (b,1,5,7)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(35, 23), torch.nn.GELU(), torch.nn.Linear(23, 4)
        )

    def forward(self, pictures):
        return self.layers(4 * pictures)


class Digits(torch.nn.Module):
    """A classifier of the house on pictures (b,1,8,8); a shift of its logits makes its classes about as frequent."""

    shift = 0.0

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        problem = Problem.of(Vectors(8, 8), OneOf(4))
        self.model = models.build("encoder(dim=16, layers=2, num_heads=2)", problem)

    def forward(self, pictures):
        return self.model(Batch.of(pictures[:, 0])) - self.shift


@pytest.fixture(scope="module", params=[(Small, 5, 7), (Digits, 8, 8)], ids=["plain torch", "encoder"])
def attackable(request):
    made, *size = request.param
    model = made().eval()
    pictures = torch.rand(101, 1, *size, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        model.shift = model(pictures).mean(0)
        labels = model(pictures).argmax(1)  # every picture is right before the attack
    return model, pictures, labels


def peer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports names that scipy has moved
        return pytest.importorskip("foolbox", exc_type=ImportError)


NAMES = {"linf": "Linf", "l2": "L2"}
RADII = {"linf": 0.04, "l2": 0.15}


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("steps", [1, 13])
def test_without_chance_the_pictures_are_those_of_foolbox(attackable, norm, steps):
    foolbox = peer()
    model, pictures, labels = attackable
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    eps, step = RADII[norm], RADII[norm] / 5
    around = ball(norm, pictures, eps)

    def losses(points):
        return F.cross_entropy(model(points), labels, reduction="none")

    if steps == 1:
        attack = getattr(foolbox.attacks, f"{NAMES[norm]}FastGradientAttack")(random_start=False)
        ours = fgsm(losses, around)
    else:
        kind = getattr(foolbox.attacks, f"{NAMES[norm]}ProjectedGradientDescentAttack")
        attack = kind(abs_stepsize=step, steps=steps, random_start=False)
        ours = pgd(losses, around, steps, step)
    _, expected, _ = attack(theirs, pictures, labels, epsilons=eps)
    assert torch.allclose(ours, expected, atol=2e-5)
    before, after = (model(points).argmax(1) == labels for points in (expected, ours))
    assert int((before != after).sum()) <= 1
    assert 0.05 < float(after.float().mean()) < 0.95  # a budget at which a weaker attack would show


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_with_random_starts_the_accuracy_is_that_of_foolbox_within_noise(attackable, norm):
    foolbox = peer()
    model, pictures, labels = attackable
    theirs = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    eps, step, steps = RADII[norm], RADII[norm] / 5, 13
    kind = getattr(foolbox.attacks, f"{NAMES[norm]}ProjectedGradientDescentAttack")
    torch.manual_seed(7)
    _, expected, _ = kind(abs_stepsize=step, steps=steps)(theirs, pictures, labels, epsilons=eps)

    def losses(points):
        return F.cross_entropy(model(points), labels, reduction="none")

    around = ball(norm, pictures, eps)
    ours = pgd(losses, around, steps, step, around.random(torch.Generator().manual_seed(7)))
    right = [float((model(points).argmax(1) == labels).float().mean()) for points in (expected, ours)]
    assert abs(right[0] - right[1]) <= 0.03  # of 101 pictures
