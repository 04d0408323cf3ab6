"""Every attention a model takes: what it was trained to say with the answer at hand, it says step by step."""

import functools

import pytest
import torch

import regard
from regard.nn import entry, names
from regard.nn.parts.mechanism import options_of
from regard_workbench import models
from regard_workbench.models import MODELS
from regard_workbench.tasks import Batch, HiddenTokens, NextToken, OneOf, Problem, Tokens, Writes
from regard_workbench.tasks.answers import shifted

WORDS, SOURCE, TARGET = 11, 5, 8  # the target goes on behind the end of the source
PROBLEMS = {
    "language": Problem.of(Tokens(WORDS, length=2 * TARGET), NextToken(WORDS)),
    "translate": Problem.of(Tokens(WORDS, length=SOURCE), Writes(WORDS, TARGET, start=1, end=2)),
}
WRITERS = [
    (name, kind)
    for name in models.names()
    for kind in PROBLEMS
    if models.fits(MODELS[name], PROBLEMS[kind]) and MODELS[name].takes_attention
]
POSITIONS = ("rotary", "alibi", "t5", "shaw", "transformer-xl", "relative")
FORMS = [
    *names(),
    *[f"multihead(positions={position}, max_distance=3)" for position in POSITIONS],
    "relative(positions=t5)",
    "multihead(window=3)",
    "local(window=3, positions=alibi)",
    "local-m(window=3, gaussian=True)",
    "local-p(window=3, causal=True)",
    "key-value-memory(positions=rotary)",
    "linear(causal=True)",
    "global-query(causal=True)",
    "additive(causal=True)",
    "multihead(causal=True)",
]


def form_of(given):
    """The name with the options that a small example needs."""
    if "(" in given:
        return given
    needs = {"slots": 3, "segment": 3, "window": 3, "width": 4}
    found = {key: value for key, value in needs.items() if key in options_of(entry(given).layer)}
    found = {key: value for key, value in found.items() if key != "window" or key in entry(given).needs}
    return f"{given}({', '.join(f'{key}={value}' for key, value in found.items())})" if found else given


def built(name, kind, **options):
    torch.manual_seed(7)
    layers = {} if name in ("seq2seq", "lstm-attention") else {"layers": 2}
    return models.build(name, PROBLEMS[kind], dim=8, num_heads=2, **layers, **options).double().eval()


def tokens(rows, length, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, WORDS, (rows, length), generator=generator)


def question(kind):
    """Inputs of unequal length where there is a source, and the answer."""
    if kind == "language":
        return Batch.of(tokens(2, TARGET))
    keep = torch.tensor([[True] * SOURCE, [True] * 3 + [False] * 2])
    return Batch.of(tokens(2, SOURCE), keep, tokens(2, TARGET, seed=4))


def assert_steps_are_one_call(model, kind):
    asked = question(kind)
    expected = model(asked)
    if kind == "language":
        fed, state = asked.inputs, model.initial_state(len(asked.inputs))
    else:
        fed, state = shifted(asked.targets, model.answer.start), model.initial_state(asked)
    found, done = [], 0
    with torch.no_grad():
        for size in (1, 1, 2, 1, 3):
            logits, state = model.step(fed[:, done : done + size], state)
            found.append(logits)
            done += size
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-9, atol=1e-9)


def assert_generates(model, kind):
    asked = question(kind)
    for options in ({"method": "greedy"}, {"method": "beam", "beam": 3, "n_best": 2}):
        found = model.generate(Batch.of(asked.inputs, asked.keep), max_length=4, **options)
        for row, best in enumerate(found):
            assert len(best) == options.get("n_best", 1)
            # The score of what was written is that of a forward pass over it.
            written = torch.tensor([best[0].tokens])
            if kind == "language":
                whole = torch.cat([asked.inputs[row : row + 1], written], 1)
                logits = model(Batch.of(whole[:, :-1]))[:, TARGET - 1 :]
            else:
                logits = model(Batch.of(asked.inputs[row : row + 1], asked.keep[row : row + 1], written))
            total = logits.log_softmax(-1).gather(-1, written[..., None]).sum().item()
            assert best[0].score == pytest.approx(total / len(best[0].tokens), abs=1e-5)


def assert_writes_as_it_learns(build, kind):
    """Either the model refuses the attention when it is built, or it trains and decodes the same function."""
    try:
        model = build()
    except regard.RegardError as refused:
        assert "cannot be causal" in str(refused)
        return
    assert_steps_are_one_call(model, kind)
    assert_generates(model, kind)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "kind"), WRITERS)
def test_a_model_with_any_attention_writes_as_it_learns(name, kind, form):
    assert_writes_as_it_learns(functools.partial(built, name, kind, attention=form_of(form)), kind)


@pytest.mark.parametrize("form", FORMS)
def test_a_transformer_with_any_attention_to_its_source_writes_as_it_learns(form):
    model = built("transformer", "translate", cross=form_of(form))
    assert_steps_are_one_call(model, "translate")
    assert_generates(model, "translate")


def test_only_attentions_that_look_ahead_are_refused():
    refused = []
    for form in names():
        try:
            built("decoder", "language", attention=form_of(form))
        except regard.RegardError:
            refused.append(form)
    assert refused == [form for form in names() if entry(form).causal == "no"]


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_an_attention_to_the_source_that_counts_from_its_end_is_refused_at_once(name):
    option = "attention" if name == "seq2seq" else "cross"
    with pytest.raises(regard.RegardError, match=r"align: .*top left.*Leave align out"):
        built(name, "translate", **{option: "local(window=3, align=bottom-right)"})


def test_padding_does_not_move_the_question_of_an_lstm():
    problem = Problem.of(Tokens(WORDS, length=SOURCE), OneOf(3))
    for form in ("relative", "local(window=3)", "multihead(positions=alibi)"):
        torch.manual_seed(5)
        model = models.build("lstm-attention", problem, dim=8, num_heads=2, attention=form).double().eval()
        asked = question("translate")
        together = model(Batch.of(asked.inputs, asked.keep))
        torch.testing.assert_close(model(Batch.of(asked.inputs[1:, :3])), together[1:], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["decoder", "dynamic-transformer", "transformer", "encoder"])
def test_options_inside_an_attentions_name_win_over_those_of_the_model(name):
    kind = {"transformer": "translate", "encoder": "masked"}.get(name, "language")
    problem = {**PROBLEMS, "masked": Problem.of(Tokens(WORDS, length=SOURCE), HiddenTokens(WORDS, blank=1))}[kind]
    model = models.build(
        name, problem, dim=12, num_heads=4, attention_dropout=0.1, attention="multihead(num_heads=3, dropout=0.25)"
    )
    stacks = [model.encoder, model.decoder] if name == "transformer" else [model.stack]
    for layer in [layer for stack in stacks for layer in stack.layers]:
        assert (layer.attention.num_heads, layer.attention.dropout) == (3, 0.25)
    plain = models.build(name, problem, dim=12, num_heads=4, attention_dropout=0.1, attention="multihead")
    first = (plain.decoder if name == "transformer" else plain.stack).layers[0].attention
    assert (first.num_heads, first.dropout) == (4, 0.1)
