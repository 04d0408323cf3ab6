"""`seq2seq` against its papers: one step by hand, and a plain loop as the oracle of outputs and gradients."""

import math

import pytest
import torch
from torch import nn

import regard
from regard_workbench import models
from regard_workbench.models.parts.recurrent import RecurrentState
from regard_workbench.models.seq2seq import Seq2seqState
from regard_workbench.tasks import Batch, Problem, Tokens, Writes
from regard_workbench.tasks.answers import shifted

WORDS, OUT, SOURCE, TARGET = 13, 11, 5, 7
PROBLEM = Problem.of(Tokens(WORDS, length=SOURCE), Writes(OUT, TARGET, start=1, end=2))


def built(**options):
    torch.manual_seed(5)
    return models.build("seq2seq", PROBLEM, **{"dim": 6, "dropout": 0.0, **options}).double()


def question():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(3, WORDS, (2, SOURCE), generator=generator)
    targets = torch.randint(3, OUT, (2, TARGET), generator=generator)
    keep = torch.tensor([[True] * SOURCE, [True] * 3 + [False] * 2])
    return Batch.of(inputs, keep, targets)


# One step by hand. Width 2, a plain RNN; the last word is embedded as y = (1, 2).


def by_hand(feeding, attention, **weights):
    """A model whose step has the given weights, and the state before the step."""
    model = built(dim=2, cell="rnn", attention=attention, feeding=feeding).eval()
    with torch.no_grad():
        model.target_embedding.rows.weight[3] = torch.tensor([1.0, 2.0]) / model.target_embedding.scale
        cell = model.decoder.cells[0]
        cell.bias_ih.zero_(), cell.bias_hh.zero_()
        cell.weight_ih.copy_(torch.tensor(weights["inputs"]))
        cell.weight_hh.copy_(torch.tensor(weights["recurrent"]))
        model.joins[0].map.weight.copy_(torch.tensor(weights["join"]))
        model.joins[0].map.bias.zero_()
        model.head.logits = nn.Identity()
    return model


def state_before(model, hidden, source, fed=None):
    source = torch.tensor([source], dtype=torch.float64)
    recurrent = RecurrentState(torch.tensor([[hidden]], dtype=torch.float64))
    states = tuple(layer.initial_state(1) for layer in model.attentions)
    fed = None if fed is None else torch.tensor([fed], dtype=torch.float64)
    return Seq2seqState(recurrent, states, source, None, fed)


def written_row(model, state):
    rows, _, after = model._continued(torch.tensor([[3]]), state)
    return rows[0, 0].tolist(), after


def test_one_step_of_bahdanau_by_hand():
    """c_t is asked for by s_{t−1}, and enters s_t."""
    x = math.atanh(math.log(3) / 2)
    model = by_hand(
        "context",
        "additive",
        inputs=[[0.1, 0.0, 0.2, 0.0], [0.0, 0.1, 0.0, 0.1]],  # W_y | W_c
        recurrent=[[0.5, 0.0], [0.0, -0.4]],
        join=[[0.0, 0.0, 1.0, 0.0], [0.0, 0.1, 0.0, 0.0]],  # c | s
    )
    compare = model.attentions[0].compare
    with torch.no_grad():
        compare.query_weight.copy_(torch.tensor([[[0.0, -x], [0.0, 0.0]]]))
        compare.key_weight.copy_(torch.tensor([[[x, 0.0], [0.0, 0.0]]]))
        compare.vector.copy_(torch.tensor([[2.0, 0.0]]))
    # s_{t−1} = (0, 1): e_1 = 2 tanh(−x + 0) = −ln 3, e_2 = 2 tanh(−x + x) = 0, so the weights are 1/4 and 3/4,
    # and c_t = (0 + 3/4, 4/4 + 3·8/4) = (0.75, 7).
    row, after = written_row(model, state_before(model, [0.0, 1.0], [[0.0, 4.0], [1.0, 8.0]]))
    # s_t = tanh(0.1·1 + 0.2·0.75 + 0.5·0,  0.1·2 + 0.1·7 − 0.4·1) = tanh(0.25, 0.5)
    assert after.recurrent.hidden[0, 0].tolist() == pytest.approx([0.244919, 0.462117], abs=1e-6)
    # h̃_t = tanh(s_t[0], 0.1·7)
    assert row == pytest.approx([0.240136, 0.604368], abs=1e-6)


def test_one_step_of_luong_by_hand():
    """h̃_{t−1} enters s_t, which then asks for c_t."""
    model = by_hand(
        "luong",
        "dot",
        inputs=[[0.1, 0.0, math.log(3) / 2 - 0.1, 0.0], [0.0, 0.1, 0.0, 0.0]],  # W_y | W_h̃
        recurrent=[[0.0, 0.0], [0.0, -0.2]],
        join=[[0.0, 0.1, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]],  # c | s
    )
    # s_t = tanh(0.1·1 + (ln 3 / 2 − 0.1)·1,  0.1·2 − 0.2·1) = tanh(ln 3 / 2, 0) = (0.5, 0)
    state = state_before(model, [0.3, 1.0], [[0.0, 4.0], [2 * math.log(3), 8.0]], fed=[1.0, 0.7])
    row, after = written_row(model, state)
    assert after.recurrent.hidden[0, 0].tolist() == pytest.approx([0.5, 0.0], abs=1e-6)
    # e = (0, ln 3), weights 1/4 and 3/4, c_t = (…, 4/4 + 3·8/4) = (…, 7);  h̃_t = tanh(0.1·7, 0.5)
    assert row == pytest.approx([0.604368, 0.462117], abs=1e-6)
    assert after.fed[0].tolist() == pytest.approx(row)


# The plain loop: torch's own cells on [y; fed], attention pair by pair.


def plain_context(attention, name, row, source, keep):
    """What `additive` or `general` of one head returns for rows (b,dim), as the papers write it."""
    contexts = []
    for query, rows, real in zip(row, source, keep, strict=True):
        rows = rows[real]
        if name == "additive":
            mapped = torch.stack([attention.compare.key_weight[0] @ one for one in rows])
            scores = torch.tanh(attention.compare.query_weight[0] @ query + mapped) @ attention.compare.vector[0]
        else:
            scores = torch.stack([query @ attention.compare.weight[0] @ one for one in rows])
        contexts.append(scores.softmax(0) @ rows)
    return torch.stack(contexts)


def plain_loop(model, batch, names):
    """The logits of `seq2seq` written as a loop over steps, layers and attentions."""
    source, start = model.read(batch)
    words = model.target_embedding(shifted(batch.targets, model.answer.start))
    hidden = list(start.hidden.unbind(1))
    memory = None if start.cell is None else list(start.cell.unbind(1))
    tilde, found = torch.zeros_like(hidden[0]), []

    def attend(row):
        context = plain_context(model.attentions[0], names[0], row, source, batch.keep)
        for number in range(1, len(names)):
            row = torch.tanh(model.joins[number - 1].map(torch.cat([context, row], -1)))
            context = plain_context(model.attentions[number], names[number], row, source, batch.keep)
        return context, row

    for step in range(words.shape[1]):
        fed = attend(hidden[-1])[0] if model.feeding == "context" else tilde
        below = torch.cat([words[:, step], fed], -1)
        for layer, cell in enumerate(model.decoder.cells):
            if memory is None:
                hidden[layer] = cell(below, hidden[layer])
            else:
                hidden[layer], memory[layer] = cell(below, (hidden[layer], memory[layer]))
            below = hidden[layer]
        context, row = (fed, hidden[-1]) if model.feeding == "context" else attend(hidden[-1])
        tilde = torch.tanh(model.joins[-1].map(torch.cat([context, row], -1)))
        found.append(tilde)
    return model.head(torch.stack(found, 1), batch)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("names", [("additive",), ("general", "additive")])
@pytest.mark.parametrize("feeding", ["context", "luong"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_outputs_and_gradients_are_those_of_a_plain_loop(cell, feeding, names, layers):
    model = built(cell=cell, feeding=feeding, attention_layers=names, layers=layers)
    batch = question()
    seed = torch.randn(2, TARGET, OUT, dtype=torch.float64)
    expected = plain_loop(model, batch, names)
    slopes = torch.autograd.grad((expected * seed).sum(), list(model.parameters()))
    found = model(batch)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    ours = torch.autograd.grad((found * seed).sum(), list(model.parameters()))
    for (name, _), mine, plain in zip(model.named_parameters(), ours, slopes, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-8, atol=1e-9, msg=name)
        assert plain.abs().sum() > 0, name


@pytest.mark.parametrize("feeding", ["context", "luong", "none"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_decoding_step_by_step_equals_teacher_forcing(cell, feeding):
    names = ("additive", "local-m(window=3)", "local-p(window=3)")
    model, batch = built(cell=cell, feeding=feeding, attention_layers=names, layers=2).eval(), question()
    expected = model(batch)
    tokens, state, found, done = shifted(batch.targets, 1), model.initial_state(batch), [], 0
    for size in (1, 2, 0, 1, 3):
        logits, state = model.step(tokens[:, done : done + size], state)
        found.append(logits)
        done += size
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-10, atol=1e-10)


def test_without_feeding_the_recurrence_does_not_see_the_source():
    """A change of the source's rows moves the decoder's states only where what was attended to is fed."""
    moved = {}
    for feeding in ("none", "luong", "context"):
        model, batch = built(feeding=feeding, attention="dot").eval(), question()
        state, tokens = model.initial_state(batch), shifted(batch.targets, 1)
        other = Seq2seqState(state.recurrent, state.attentions, state.source + 1, state.keep, state.fed)
        hidden = []
        for begin in (state, other):
            for size in (1, 1, 1):
                hidden.append(model._continued(tokens[:, :size], begin)[2].recurrent.hidden)
                begin = model._continued(tokens[:, :size], begin)[2]
        moved[feeding] = [not torch.allclose(hidden[t], hidden[t + 3]) for t in range(3)]
    # Luong's first step is fed zeros.
    assert moved == {"none": [False] * 3, "luong": [False, True, True], "context": [True] * 3}


@pytest.mark.parametrize(
    ("attention", "feeding"),
    [
        ("additive", "context"),
        ("concat", "context"),
        ("hard", "context"),
        ("dot", "luong"),
        ("general", "luong"),
        ("local-m(window=3)", "luong"),
        ("local-p", "luong"),
        ("multihead(num_heads=2)", "luong"),
        ("soft", "luong"),
    ],
)
def test_feeding_follows_the_paper_of_the_mechanism(attention, feeding):
    assert built(attention=attention).feeding == feeding
    assert built(attention=attention, feeding="none").feeding == "none"
    assert models.build("seq2seq(dim=6, feeding=none)", PROBLEM, attention=attention).feeding == "none"


def test_different_attention_layers_have_their_own_weights_and_are_all_observed():
    model = models.build('seq2seq(dim=6, attention_layers="additive,local-p(window=3), additive")', PROBLEM).eval()
    assert [layer.entry.name for layer in model.attentions] == ["additive", "local-p", "additive"]
    assert model.attentions[0].compare.vector is not model.attentions[2].compare.vector
    assert model.feeding == "context"
    batch = question()
    with regard.observe(model) as seen:
        model(batch)
    assert seen.names() == ["attentions.0", "attentions.1", "attentions.2"]
    for name in seen.names():
        site = seen[name]
        assert site.calls == 1 and site.how == "exact"
        assert site.shape() == site.weights().shape == (2, 1, TARGET, SOURCE)
        assert (site.weights()[1, :, :, 3:] == 0).all()
        torch.testing.assert_close(site.weights(rows=[-1, 2]), site.weights()[:, :, [-1, 2]])
        summary = site.summary(top=2)
        assert summary.entropy.shape == (2, 1, TARGET) and summary.logsumexp.shape == (2, 1, TARGET)
    torch.testing.assert_close(seen["attentions.2"].weights().mean(1), model.alignments(batch))


def test_observed_weights_of_each_step_are_those_the_step_mixed_with():
    model, batch = built(attention="general", feeding="luong").eval(), question()
    with regard.observe(model, gradients=True) as seen:
        logits = model(batch)
    source, _ = model.read(batch)
    _, queries, _ = model._rows_and_queries(batch)
    scores = torch.einsum("btd,de,bne->btn", queries, model.attentions[0].compare.weight[0], source)
    expected = scores.masked_fill(~batch.keep[:, None], -torch.inf).softmax(-1)
    site = seen["attentions.0"]
    torch.testing.assert_close(site.weights()[:, 0], expected)
    seen.gradient(logits[0, -1, 4])
    contribution = site.times_gradient()
    assert contribution.shape == (2, 1, TARGET, SOURCE)
    assert contribution[0].abs().sum() > 0 and contribution[1].abs().sum() == 0


def test_wrong_options_are_refused_with_what_to_try():
    for options, words in [
        ({"feeding": "luon"}, "Did you mean 'luong'"),
        ({"cell": "gruu"}, "Did you mean 'gru'"),
        ({"attention": "dot", "attention_layers": "additive,local-p"}, "names every mechanism already.*Leave one"),
        ({"attention_layers": ""}, "attention_layers: expected"),
        ({"attention_layers": 0}, "attention_layers: "),
        ({"attention_layers": "additive,dott"}, "Did you mean 'dot'"),
    ]:
        with pytest.raises(regard.RegardError, match=words):
            built(**options)


@pytest.mark.parametrize("feeding", ["context", "luong"])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_it_trains_under_autocast(cell, feeding):
    torch.manual_seed(2)
    model, batch = models.build("seq2seq", PROBLEM, dim=6, cell=cell, layers=2, feeding=feeding), question()
    with torch.autocast("cpu", torch.bfloat16):
        total, count = model.loss(model(batch), batch)
    (total / count).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
