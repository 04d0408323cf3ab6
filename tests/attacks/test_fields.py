"""Attacks on classifiers that look step by step, and on those that read a question beside the picture."""

import pytest
import torch

import regard
from regard_workbench import models, tasks
from regard_workbench.attacks import places
from regard_workbench.attacks.target import Target
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.training.loading import load

FIELDS = {
    "glimpse": ("glimpse(canvas=24, smallest=12, largest=12, clutter=1)", "glimpse(dim=16, glimpses=2)"),
    "ask": ("ask(size=24, objects=3, patch=6, scenes=50)", "answerer(dim=16, hops=1, num_heads=2, width=4)"),
}


@pytest.fixture(scope="module", params=list(FIELDS))
def run(request, tmp_path_factory):
    task, model = FIELDS[request.param]
    out = tmp_path_factory.mktemp(request.param) / "run"
    # Without a limit, ten validations of a thousand examples each would take most of the time.
    regard.train(task, model=model, steps=40, batch_size=8, eval_limit=40, out=out, device="cpu", quiet=True)
    return out


def test_the_picture_alone_is_attacked_and_accuracies_are_those_of_evaluate(run):
    report = regard.attack(run, "fgsm", eps=[0.05, 0.5], limit=37, batch_size=37, device="cpu")
    (found,) = report.runs
    measured = regard.evaluate(run, device="cpu", limit=37).metrics
    assert found.clean.value == pytest.approx(next(row.value for row in measured if row.metric == "accuracy"))
    assert all(found.clean.value >= row.accuracy.value for row in found.rows)  # what is wrong stays wrong
    assert any(found.right) and found.rows[-1].moved
    assert found.rows[0].largest <= 0.05 and found.rows[1].largest <= 0.5
    assert report.figure() is not None


def test_the_gradient_is_that_of_the_last_answer_by_differences(run):
    loaded = load(run, device="cpu")
    examples = loaded.task.examples("test")
    batch = loaded.task.collate([examples[number] for number in range(3)], torch.Generator())
    model = loaded.model.double().eval()
    target = Target.of(model, batch.map(lambda one: one.double() if one.is_floating_point() else one))
    pixels = target.inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(target.losses(pixels).sum(), pixels)
    place = slope.abs().flatten().argmax()
    moved = target.inputs.clone()
    moved.view(-1)[place] += 1e-3  # losses are float32
    with torch.no_grad():
        rise = (target.losses(moved) - target.losses(target.inputs)).sum() / 1e-3
    assert float(rise) == pytest.approx(float(slope.flatten()[place]), rel=0.05)
    other = target.reading(moved)
    for name in list(batch.streams)[1:]:
        assert torch.equal(other.streams[name].data, batch.streams[name].data)


def test_weights_over_the_words_of_a_question_are_no_weights_of_patches():
    """Nine words would pass for a grid of 3 × 3 places."""
    task = tasks.build(FIELDS["ask"][0])
    model = models.build(FIELDS["ask"][1], task.problem).eval()
    examples = task.examples("test")
    batch = task.collate([examples[number] for number in range(5)], torch.Generator())
    words = Stream(batch.streams["question"].data[:, :1].expand(5, 9))
    long = Batch({**batch.streams, "question": words}, batch.answers)
    seen = places.observed(model, long)
    over = [site for site in seen.sites.values() if site.shape()[3] == 16]
    assert any(site.shape()[3] == 9 for site in seen.sites.values()) and over
    shares = torch.stack([places.received(site, long) for site in over])
    shares /= shares.sum(2, keepdim=True)
    assert torch.allclose(places.attended(seen, long, task.problem.inputs), shares.mean(0))
