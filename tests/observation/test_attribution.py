"""Where models look: the right layer, the right names on both axes, and a reason where nothing can be shown."""

import pytest
import torch

from regard import models, tasks
from regard.models import Model
from regard.models.model import MODELS, names
from regard.observation import inspection
from regard.observation.attribution import attributions, gradient
from regard.observation.examples import LONGEST, choose, prepare
from regard.observation.watching import Unseen
from regard.training import train

SIZES = {
    "seq2seq": "dim=8", "ntm": "slots=6, width=4, hidden=8", "lstm-attention": "dim=8",
    "transformer": "dim=8, layers=1, num_heads=2", "gla": "dim=8, layers=1, num_heads=2",
    "transformer-xl": "dim=8, layers=1, num_heads=2, segment=16, memory=8",
}  # fmt: skip
TASK = {
    "classify": "classify",
    "masked": "language",
    "language": "language",
    "translate": "dates",
    "bits": "copy",
}
TEXT = "The sea was calm. A small boat came in. Nobody knew why it came! The old man waited for it.\n"


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "book.txt"
    path.write_text(TEXT * 30)
    return str(path)


def made(name, kind, book="", attention=None):
    """A small model for a task that poses such a problem, in evaluation mode."""
    options = {"data": book, "context": 64} if TASK[kind] == "language" else {}
    task = tasks.build(TASK[kind], **options)
    problem = next(problem for problem in task.problems() if problem.kind == kind)
    task.pose(problem)
    torch.manual_seed(0)
    sized = f"{name}({SIZES.get(name, 'dim=8, layers=1, num_heads=2')})"
    return models.build(sized, problem, attention=attention).eval(), task


CASES = [(name, kind) for name in names() for kind in MODELS[name].serves]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_model_shows_something_for_every_kind_of_problem(name, kind, book):
    model, task = made(name, kind, book)
    batch, ground = prepare(task, choose(task))
    found, missing = attributions(model, batch, ground)
    assert found and not missing
    for attribution in found:
        shape = (
            (len(attribution.rows), len(attribution.columns))
            if attribution.rows
            else (len(attribution.columns),)
        )
        assert attribution.weights.shape == shape
        assert attribution.weights.isfinite().all() and (attribution.weights >= 0).all()
        if attribution.heads is not None:
            assert torch.allclose(attribution.heads.mean(0), attribution.weights)
        if attribution.inputs:
            assert attribution.columns == ground.inputs


def test_an_encoder_shows_the_weights_of_its_last_layer():
    model, task = made("encoder", "classify")
    batch, ground = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, ground)
    layer = model.stack.layers[-1]
    rows = model.embedding(batch.inputs)
    expected = layer.attention.weights(layer.around_attention.enter(rows))[0]
    assert torch.allclose(attribution.heads, expected, atol=1e-6)
    assert attribution.source == "multihead of the last layer" and attribution.how == "exact"


def test_the_alignment_of_seq2seq_has_a_row_for_each_target():
    model, task = made("seq2seq", "translate")
    batch, ground = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, ground)
    assert torch.allclose(attribution.weights, model.alignments(batch)[0], atol=1e-6)
    assert attribution.rows == ground.targets and attribution.columns == ground.inputs
    assert torch.allclose(attribution.weights.sum(-1), torch.ones(len(ground.targets)), atol=1e-5)


def test_a_transformer_shows_its_cross_attention_first():
    model, task = made("transformer", "translate")
    batch, ground = prepare(task, choose(task))
    (cross, own), _ = attributions(model, batch, ground)
    assert cross.rows == ground.targets and own.rows == own.columns == ground.inputs


def test_a_model_that_reads_in_segments_shows_the_last_one(book):
    model, task = made("transformer-xl", "language", book)
    batch, ground = prepare(task, choose(task))
    (attribution,), _ = attributions(model, batch, ground)
    assert len(ground.inputs) == LONGEST  # of 40 positions the last 8, which see 8 more
    assert attribution.rows == ground.inputs[-8:] and attribution.columns == ground.inputs[-16:]
    assert not attribution.inputs


@pytest.mark.parametrize("attention", ["dynamic-memory(slots=3, segment=99)", "ntm(slots=5)"])
def test_where_no_layer_weighs_the_input_its_gradient_is_shown(attention):
    model, task = made("encoder", "classify", attention=attention)
    batch, ground = prepare(task, choose(task))
    found, _ = attributions(model, batch, ground)
    last = found[-1]
    assert last.how == "gradient × input" and last.columns == ground.inputs
    answer = int(model(batch)[0].argmax())
    assert torch.allclose(last.weights, gradient(model, batch, answer))
    assert float(last.weights.sum()) == pytest.approx(1.0)


def test_the_gradient_is_what_a_difference_says():
    """gradient × input of a logit, by moving each row of the embedding a little along itself."""
    model, task = made("lstm-attention", "classify")
    model, (batch, ground) = model.double(), prepare(task, choose(task))
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
    assert len(ground.inputs) == len(slopes)


class Bare(Model):
    """Somebody's model without an attention and without our embedding."""

    name = "bare"

    def __init__(self, problem):
        super().__init__(problem)
        self.map = torch.nn.Linear(8, problem.outputs)

    def forward(self, batch):
        return self.map(batch.inputs.mean(1))


def test_a_model_that_shows_nothing_says_why():
    task = tasks.build("digits")
    batch, ground = prepare(task, choose(task))
    model = Bare(task.problem)
    found, missing = attributions(model, batch, ground)
    assert not found and missing == ["bare has no embedding through which gradients could be followed."]
    with pytest.raises(Unseen):
        gradient(model, batch, 0)


class Foreign(Bare):
    """Somebody's model with one of our mechanisms somewhere inside."""

    def __init__(self, problem):
        super().__init__(problem)
        from regard import nn

        self.inner = nn.build("static-memory", dim=8, slots=2)

    def forward(self, batch):
        return self.map(self.inner(batch.inputs).mean(1))


def test_a_mechanism_inside_a_foreign_model_is_found():
    task = tasks.build("digits")
    batch, ground = prepare(task, choose(task))
    found, missing = attributions(Foreign(task.problem).eval(), batch, ground)
    assert [attribution.source for attribution in found] == [
        "static-memory, the last attention: writing the memory",
        "static-memory, the last attention: reading the memory",
    ]
    assert not missing and found[0].rows == ["slot 0", "slot 1"]


@pytest.mark.parametrize(("order", "first"), [("rows", "row 0"), ("pixels", "pixel 0")])
def test_a_digit_stands_on_its_image(order, first):
    task = tasks.build("digits", order=order)
    example = choose(task)
    _, ground = prepare(task, example)
    assert ground.inputs[0] == first and ground.image.shape == (8, 8)
    assert torch.equal(ground.image.flatten(), example.pixels.flatten())


def test_the_example_is_always_the_same_and_of_comfortable_length():
    one, other = (tasks.build("dates") for _ in range(2))
    assert choose(one) == choose(other) and 8 <= one.length(choose(one)) <= 24


def test_a_trained_run_is_seen_with_its_answer(tmp_path):
    train(
        {"task": "digits", "model": "lstm-attention(dim=8)", "steps": 1, "device": "cpu", "out": str(tmp_path / "run")},
        quiet=True, tell=lambda text: None,
    )  # fmt: skip
    found = inspection.inspect_run(tmp_path / "run")
    assert found.example.image is not None and not found.missing
    assert found.answer.startswith("says “")
    (attribution,) = found.attributions
    assert attribution.weights.shape == (8,) and float(attribution.weights.sum()) == pytest.approx(
        1.0, abs=1e-5
    )
