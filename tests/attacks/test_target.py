"""A classifier as an attack sees it: pixels behind a normalisation, restarts, what cannot be attacked."""

import pytest
import torch

from regard import RegardError
from regard_workbench import models
from regard_workbench.attacks.ball import ball
from regard_workbench.attacks.pixels import fgsm, slope
from regard_workbench.attacks.target import Target, kind_of
from regard_workbench.tasks import Batch, OneOf
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.parts.task import build
from regard_workbench.tasks.pictures.normalized import from_pixels, to_pixels
from regard_workbench.tasks.pictures.patches import cut, fold
from tests.attacks.toy import digits

MEAN, SPREAD = (0.2, 0.5, 0.7), (0.1, 0.3, 0.25)


def coloured(normalised=True):
    """An encoder of coloured pictures (3,8,12) in patches of 4, on five of them."""
    scale = {"mean": MEAN, "spread": SPREAD} if normalised else {}
    spec = Patches.of(3, 8, 12, 4, **scale)
    torch.manual_seed(6)
    model = models.build("encoder(dim=8, layers=1, num_heads=2)", Problem.of(spec, OneOf(5))).eval()
    pictures = torch.rand(5, 3, 8, 12, generator=torch.Generator().manual_seed(7))
    columns = [torch.tensor(part)[:, None, None] for part in (MEAN, SPREAD)]
    numbers = (pictures - columns[0]) / columns[1] if normalised else pictures
    return Target.of(model, Batch.of(cut(numbers, spec), targets=torch.arange(5))), spec, pictures


def test_a_normalised_picture_is_attacked_in_its_pixels():
    target, spec, pictures = coloured()
    assert torch.allclose(fold(target.inputs, spec), pictures, atol=1e-6)
    after = fgsm(target.losses, ball("linf", target.inputs, 0.03))
    assert float((after - target.inputs).abs().max()) <= 0.03 and 0 <= float(after.min()) <= float(after.max()) <= 1
    # In the model's own numbers the steps of the channels differ by their spread.
    moved = fold(target.reading(after).inputs - target.batch.inputs, spec).abs().amax((0, 2, 3))
    assert torch.allclose(moved, 0.03 / torch.tensor(SPREAD), rtol=1e-3)


def test_the_slope_of_a_normalised_picture_is_that_of_its_pixels():
    target, spec, _ = coloured()
    plain = slope(
        lambda rows: target.model.head.each_loss(target.model(Batch.of(rows)), target.batch), target.batch.inputs
    )
    expected = fold(plain, spec) / torch.tensor(SPREAD)[:, None, None]
    assert torch.allclose(fold(slope(target.losses, target.inputs), spec), expected, atol=1e-5)


def test_pixels_and_numbers_of_a_stream_are_each_others_inverse():
    target, spec, _ = coloured()
    assert torch.allclose(from_pixels(to_pixels(target.batch.inputs, spec), spec), target.batch.inputs, atol=1e-5)
    plain, spec, _ = coloured(normalised=False)
    assert to_pixels(plain.batch.inputs, spec) is plain.batch.inputs
    assert torch.equal(plain.inputs, plain.batch.inputs)


@pytest.mark.parametrize(
    "numbers", [torch.full((1, 8, 8), 1.5), torch.full((1, 8, 8), -0.1), torch.ones(1, 8, 8).int()]
)
def test_numbers_that_are_no_pixels_are_refused(numbers):
    _, target = digits()
    with pytest.raises(RegardError, match=r"run: expected pixels from 0 to 1"):
        Target.of(target.model, Batch.of(numbers, targets=torch.zeros(1, dtype=torch.long)))


def test_of_two_attacks_the_one_that_fools_counts_then_the_one_with_the_larger_loss():
    _, target = digits(count=7)
    strong = ball("linf", target.inputs, 0.9)
    after = fgsm(target.losses, strong)
    fools = ~target.right(after)
    chosen = target.stronger(target.inputs, after)
    assert fools.any() and torch.equal(chosen[fools], after[fools])
    assert torch.equal(target.stronger(after, target.inputs)[fools], after[fools])
    lower = target.losses(after) < target.losses(target.inputs)
    assert not (lower & ~fools).any() or torch.equal(chosen[lower & ~fools], target.inputs[lower & ~fools])


def test_each_example_is_repeated_beside_itself():
    _, target = digits(count=3)
    twice = target.repeated(2)
    assert torch.equal(twice.inputs[::2], target.inputs) and torch.equal(twice.inputs[1::2], target.inputs)
    assert twice.batch.targets.tolist() == [label for label in target.batch.targets.tolist() for _ in range(2)]


@pytest.mark.parametrize(
    ("task", "message"),
    [("dates", "expected a classifier, but dates asks for"), ("recall", "expected a classifier, but recall asks for")],
)
def test_what_is_no_classifier_of_one_picture_or_text_is_refused(task, message):
    with pytest.raises(RegardError, match=message):
        kind_of(build(task))
    assert kind_of(build("digits")) == "pictures" and kind_of(build("classify")) == "texts"


def test_the_budget_of_the_task_images_is_one_of_pixels():
    task = build("images")
    torch.manual_seed(8)
    model = models.build("vit(dim=8, layers=1, num_heads=2)", task.problem).eval()
    examples = task.examples("validation")
    target = Target.of(model, task.batch(examples, range(3), torch.Generator()))
    bytes_ = torch.stack([examples[number].pixels for number in range(3)]).float() / 255
    assert torch.allclose(fold(target.inputs, task.problem.inputs), bytes_, atol=1e-6)
    assert torch.allclose(target.reading(target.inputs).inputs, target.batch.inputs, atol=1e-5)
