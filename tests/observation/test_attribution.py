"""What is shown of a model's answer: the right layer, the right labels on both axes, or why there is nothing."""

import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.inspection import inspection
from regard_workbench.inspection.attribution import NotShown, attributions, gradient, input_attribution
from regard_workbench.inspection.examples import choose, prepare
from regard_workbench.models import Model
from regard_workbench.models.parts.model import MODELS, fits, names
from regard_workbench.tasks.parts.shown import LONGEST
from regard_workbench.training import train

SIZES = {
    "seq2seq": "dim=8",
    "ntm": "slots=6, width=4, hidden=8",
    "lstm-attention": "dim=8",
    "transformer": "dim=8, layers=1, num_heads=2",
    "gla": "dim=8, layers=1, num_heads=2",
    "transformer-xl": "dim=8, layers=1, num_heads=2, segment=16, memory=8",
}
TASKS = ("classify", "language", "dates", "copy")
TEXT = "The sea was calm. A small boat came in. Nobody knew why it came! The old man waited for it.\n"


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "book.txt"
    path.write_text(TEXT * 30)
    return str(path)


def built(name, book=""):
    """A task by name, with data where it needs some."""
    return tasks.build(name, **({"data": book, "context": 64} if name == "language" else {}))


def made(name, task, book="", answer=0, attention=None):
    """A small model in evaluation mode, and its task, which asks for one of its answers."""
    task = built(task, book)
    problem = task.problems()[answer]
    task.pose(problem)
    torch.manual_seed(0)
    sized = f"{name}({SIZES.get(name, 'dim=8, layers=1, num_heads=2')})"
    return models.build(sized, problem, attention=attention).eval(), task


@pytest.mark.parametrize("task", TASKS)
def test_every_model_shows_something_on_every_task_it_fits(task, book):
    pairs = [
        (name, number)
        for number, problem in enumerate(built(task, book).problems())
        for name in names()
        if fits(MODELS[name], problem)
    ]
    assert pairs
    for name, number in pairs:
        model, posed = made(name, task, book, number)
        batch, shown = prepare(posed, choose(posed))
        found, missing = attributions(model, batch, shown)
        assert found and not missing, name
        check_labels(found, shown)


def check_labels(found, shown):
    for attribution in found:
        shape = (len(attribution.rows), len(attribution.columns)) if attribution.rows else (len(attribution.columns),)
        assert attribution.weights.shape == shape
        assert attribution.weights.isfinite().all() and (attribution.weights >= 0).all()
        if attribution.heads is not None:
            assert torch.allclose(attribution.heads.mean(0), attribution.weights)
        if attribution.inputs:
            assert attribution.columns == shown.pieces


def test_an_encoder_shows_the_weights_of_its_last_layer():
    model, task = made("encoder", "classify")
    batch, shown = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, shown)
    layer = model.stack.layers[-1]
    rows = model.embedding(batch.inputs)
    expected = layer.attention.weights(layer.around_attention.enter(rows))[0]
    assert torch.allclose(attribution.heads, expected, atol=1e-6)
    assert attribution.source == "multihead of the last layer" and attribution.how == "exact"


def test_the_alignment_of_seq2seq_has_a_row_for_each_target():
    model, task = made("seq2seq", "dates")
    batch, shown = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, shown)
    assert torch.allclose(attribution.weights, model.alignments(batch)[0], atol=1e-6)
    assert attribution.rows == shown.target and attribution.columns == shown.pieces
    assert torch.allclose(attribution.weights.sum(-1), torch.ones(len(shown.target)), atol=1e-5)


def test_a_transformer_shows_its_cross_attention_first():
    model, task = made("transformer", "dates")
    batch, shown = prepare(task, choose(task))
    (cross, own), _ = attributions(model, batch, shown)
    assert cross.rows == shown.target and own.rows == own.columns == shown.pieces


def test_a_model_that_reads_in_segments_shows_the_last_one(book):
    model, task = made("transformer-xl", "language", book)
    batch, shown = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, shown)
    assert len(shown.pieces) == LONGEST  # of 40 positions the last 8, which see 8 more
    assert attribution.rows == shown.pieces[-8:] and attribution.columns == shown.pieces[-16:]
    assert not attribution.inputs


@pytest.mark.parametrize("attention", ["dynamic-memory(slots=3, segment=99)", "ntm(slots=5)"])
def test_where_no_layer_weighs_the_input_its_gradient_is_shown(attention):
    model, task = made("encoder", "classify", attention=attention)
    batch, shown = prepare(task, choose(task))
    found, _ = attributions(model, batch, shown)
    last = found[-1]
    assert last.how == "gradient × input" and last.columns == shown.pieces
    answer = int(model(batch)[0].argmax())
    assert torch.allclose(last.weights, gradient(model, batch, answer))
    assert float(last.weights.sum()) == pytest.approx(1.0)


def test_the_gradient_equals_finite_differences():
    """gradient × input of a logit, by moving each row of the embedding a little along itself."""
    model, task = made("lstm-attention", "classify")
    model, (batch, shown) = model.double(), prepare(task, choose(task))
    rows = model.embedding.rows(batch.inputs).detach()

    def logit(scale):
        hook = model.embedding.rows.register_forward_hook(lambda *_: rows * scale[None, :, None])
        try:
            with torch.no_grad():
                return float(model(batch)[0, 1])
        finally:
            hook.remove()

    step, one = 1e-5, torch.ones(rows.shape[1], dtype=torch.float64)
    nudges = torch.eye(rows.shape[1], dtype=torch.float64) * step
    slopes = torch.tensor([abs(logit(one + nudge) - logit(one - nudge)) / (2 * step) for nudge in nudges])
    assert torch.allclose(gradient(model, batch, 1), slopes / slopes.sum(), atol=1e-4)
    assert len(shown.pieces) == len(slopes)


class Bare(Model):
    """A model from outside, without attention and without an embedding."""

    name = "bare"

    def __init__(self, problem):
        super().__init__(problem)
        self.head = problem.answer.head(8)

    def forward(self, batch):
        return self.head(batch.inputs.mean(1), batch)


def test_a_model_that_shows_nothing_says_why():
    task = tasks.build("digits")
    batch, shown = prepare(task, choose(task))
    model = Bare(task.problem)
    found, missing = attributions(model, batch, shown)
    assert not found and missing == ["bare has no embedding through which gradients could be followed."]
    with pytest.raises(NotShown):
        gradient(model, batch, 0)


class Foreign(Bare):
    """A model from outside with one of our mechanisms inside."""

    def __init__(self, problem):
        super().__init__(problem)
        from regard import nn

        self.inner = nn.build("static-memory", dim=8, slots=2)

    def forward(self, batch):
        return self.head(self.inner(batch.inputs).mean(1), batch)


def test_a_mechanism_inside_a_foreign_model_is_found():
    task = tasks.build("digits")
    batch, shown = prepare(task, choose(task))
    found, missing = attributions(Foreign(task.problem).eval(), batch, shown)
    assert [attribution.source for attribution in found] == [
        "static-memory, the last attention: writing the memory",
        "static-memory, the last attention: reading the memory",
    ]
    assert not missing and found[0].rows == ["slot 0", "slot 1"]


@pytest.mark.parametrize(("order", "first"), [("rows", "row 0"), ("pixels", "0,0")])
def test_a_digit_is_shown_over_its_image(order, first):
    task = tasks.build("digits", order=order)
    example = choose(task)
    _, shown = prepare(task, example)
    assert shown.pieces[0] == first and shown.picture.shape == (8, 8)
    assert torch.equal(torch.from_numpy(shown.picture).flatten(), example.pixels.flatten())


def test_the_example_is_always_the_same_and_of_comfortable_length():
    one, other = (tasks.build("dates") for _ in range(2))
    assert choose(one) == choose(other) and 8 <= one.length(choose(one)) <= 24


def test_a_trained_run_is_seen_with_its_answer(tmp_path):
    train(
        {"task": "digits", "model": "lstm-attention(dim=8)", "steps": 1, "device": "cpu", "out": str(tmp_path / "run")},
        quiet=True,
        tell=lambda text: None,
    )
    found = inspection.inspect_run(tmp_path / "run")
    assert found.shown.picture is not None and not found.missing
    assert found.answer.startswith("says “")
    (attribution,) = found.attributions
    assert attribution.weights.shape == (8,) and float(attribution.weights.sum()) == pytest.approx(1.0, abs=1e-5)


def test_an_input_attribution_has_one_share_for_each_input():
    """From attention where it reaches every input, else from the gradient."""
    for attention, how in (("multihead", "exact"), ("ntm(slots=5)", "gradient × input")):
        model, task = made("encoder", "classify", attention=attention)
        batch, shown = prepare(task, choose(task))
        found = input_attribution(model, batch, 1)
        assert found.how == how and found.weights.shape == (len(shown.pieces),)
        assert float(found.weights.sum()) == pytest.approx(1.0, abs=1e-5)
