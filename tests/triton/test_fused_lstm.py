"""The kernels of an LSTM beside torch's: hidden rows, states, gradients, padding, dropout, and when they are used."""

from functools import partial

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from regard.nn import fast_path
from regard_fast import fused_rows
from regard_fast.fused_rows import lstm, lstm_kernels, lstm_op, lstm_plain
from regard_fast.fused_rows.weight_copies import keep_copy
from regard_workbench import models
from regard_workbench.models.parts.recurrent import Recurrent
from regard_workbench.tasks.answers import NextToken, OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens
from tests.triton.conftest import DEVICE, HALVED
from tests.triton.test_fused_rows import Counted

# float64 shows a wrong formula where float32 would hide it in its rounding; a GPU has no such products.
DTYPE, WIDE = (torch.bfloat16, torch.float32) if HALVED else (torch.float64, torch.float64)
TOLERANCE = 3e-2 if HALVED else 1e-12
B, N, D, H = 19, 5, 13, 16  # two blocks of batch entries


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """LSTMs use the kernels, also on the CPU."""
    monkeypatch.setattr(fast_path, "enabled", True)
    monkeypatch.setattr(fused_rows, "on_cpu", True)


def cells_of(inputs=D, width=H, layers=1, both=True, **options):
    torch.manual_seed(5)
    made = nn.LSTM(inputs, width, layers, batch_first=True, bidirectional=both, **options)
    return made.to(DEVICE, WIDE)


def rows_of(batch=B, length=N, inputs=D):
    torch.manual_seed(7)
    return torch.randn(batch, length, inputs, dtype=torch.float64).to(DEVICE)


def right_padding(batch=B, length=N):
    lengths = torch.arange(batch) % length + 1
    return (torch.arange(length) < lengths[:, None]).to(DEVICE)


def graded(call, x, parameters, parts=(0, 1, 2)):
    """Hidden rows and last states, and the gradients of inputs and weights through some of them."""
    hidden, (last, cell) = call(x)
    found = [hidden, last, cell]
    torch.manual_seed(11)
    pulls = [torch.randn(one.shape, dtype=torch.float64).to(one) for one in found]
    some, grads = [found[part] for part in parts], [pulls[part] for part in parts]
    return [*found, *torch.autograd.grad(some, [x, *parameters], grads)]


def autocast():
    return torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED)


def close(found, wanted):
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert mine.shape == theirs.shape
        off = (mine.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-9)
        assert off < TOLERANCE, (place, off)


def compare(cells, x, **options):
    """Our kernels against torch's formula in float64."""
    exact = nn.LSTM(
        cells.input_size, cells.hidden_size, cells.num_layers, batch_first=True, bidirectional=cells.bidirectional
    ).to(DEVICE, torch.float64)
    exact.load_state_dict(cells.state_dict())
    x = x.detach().requires_grad_()
    # torch's own kernels for a GPU have no float64 with equal formulas to rely on: the CPU is the judge.
    wanted = graded(exact.cpu(), x.detach().cpu().requires_grad_(), exact.parameters(), **options)
    ours = x.detach().to(WIDE).requires_grad_()
    with autocast():
        assert lstm.refusal(cells, ours) == ""
        found = graded(lambda rows: lstm.run(cells, rows), ours, cells.parameters(), **options)
    close([one.cpu() for one in found], wanted)


SIZES = [
    (1, 1, 7, 16, 1, False),
    (3, 5, 7, 16, 1, True),
    (19, 5, 13, 16, 2, True),
    (17, 3, 70, 32, 2, False),
    (2, 2, 16, 64, 1, True),
    (2, 2, 3, 128, 1, False),
]


@pytest.mark.parametrize(("batch", "length", "inputs", "width", "layers", "both"), SIZES)
def test_rows_states_and_every_gradient_are_those_of_torch(batch, length, inputs, width, layers, both):
    compare(cells_of(inputs, width, layers, both), rows_of(batch, length, inputs))


@pytest.mark.parametrize("parts", [(0,), (1,), (2,)])
def test_each_result_may_be_the_only_one_that_is_used(parts):
    compare(cells_of(layers=2), rows_of(), parts=parts)


def with_kernels(recurrent, x, keep, monkeypatch, enabled):
    monkeypatch.setattr(fast_path, "enabled", enabled)

    def call(rows):
        found, state = recurrent(rows, keep)
        return found, (state.hidden, state.cell)

    with autocast():
        return graded(call, x, recurrent.parameters())


@pytest.mark.parametrize("both", [False, True])
def test_padding_gives_what_packed_sequences_give(both, monkeypatch):
    torch.manual_seed(3)
    recurrent = Recurrent(32, 2, both=both).to(DEVICE, WIDE)
    x, keep = rows_of(inputs=32).to(WIDE).requires_grad_(), right_padding()
    found = with_kernels(recurrent, x, keep, monkeypatch, True)
    close(found, with_kernels(recurrent, x, keep, monkeypatch, False))
    assert not found[0][~keep].any() and not found[3][~keep].any()
    poisoned = x.detach().masked_fill(~keep[..., None], torch.nan).requires_grad_()
    for mine, before in zip(with_kernels(recurrent, poisoned, keep, monkeypatch, True), found, strict=True):
        assert torch.equal(mine, before)


def test_an_empty_sequence_leaves_the_state_at_zero():
    recurrent = Recurrent(32).to(DEVICE, WIDE)
    keep = right_padding()
    keep[3] = False
    with autocast():
        found, state = recurrent(rows_of(inputs=32).to(WIDE), keep)
    assert not found[3].any() and not state.hidden[3].any() and not state.cell[3].any()
    assert state.cell[2].any()


def test_dropout_between_layers_is_that_of_the_plain_formula():
    cells, x = cells_of(layers=3), rows_of().to(WIDE).requires_grad_()
    weights, seed = list(cells._flat_weights), torch.tensor([123456789012345], device=DEVICE)

    def by_kernels(rows, keep):
        hidden, *last = lstm_op.run(rows, keep, seed, weights, 2, 0.3, DTYPE)
        return hidden, last

    def by_formula(rows, keep):
        hidden, *last = lstm_plain.layers(rows, keep, seed, weights, 2, 0.3)
        return hidden, last

    for keep in (None, right_padding()):
        wanted = graded(partial(by_formula, keep=keep), x, weights)
        close(graded(partial(by_kernels, keep=keep), x, weights), wanted)
    without = lstm_plain.layers(x, None, None, weights, 2, 0.3)[0]
    assert not torch.allclose(by_kernels(x, None)[0].to(without), without, atol=0.01)


def test_dropout_acts_between_layers_in_training_only():
    cells, x = cells_of(layers=2, dropout=0.5), rows_of().to(WIDE)
    with autocast():
        first, again = lstm.run(cells, x)[0], lstm.run(cells, x)[0]
        assert not torch.equal(first, again)
        torch.manual_seed(1)
        first = lstm.run(cells, x)[0]
        torch.manual_seed(1)
        assert torch.equal(first, lstm.run(cells, x)[0])
        cells.eval()
        compare(cells, rows_of())
        alone = cells_of(layers=1)
        alone.dropout = 0.5
        assert torch.equal(lstm.run(alone, x)[0], lstm.run(alone, x)[0])


def test_bits_repeat():
    cells, x = cells_of(layers=2), rows_of().to(WIDE).requires_grad_()
    for _ in range(20 if DEVICE == "cuda" else 1):
        with autocast():
            one, other = (graded(lambda rows: lstm.run(cells, rows), x, cells.parameters()) for _ in range(2))
        assert all(map(torch.equal, one, other))


def test_a_second_derivative_is_that_of_torch():
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    cells, x = cells_of(layers=2), rows_of(3, 4).requires_grad_()

    def second(call):
        hidden, (last, cell) = call(x)
        total = hidden.sin().sum() + last.square().sum() + cell.square().sum()
        (first,) = torch.autograd.grad(total, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *cells.parameters()])

    for mine, theirs in zip(second(lambda rows: lstm.run(cells, rows)), second(cells), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_operator_keeps_the_rules_of_torch():
    for layers, keep, rate in ((1, None, 0.0), (2, right_padding(3, 4), 0.2)):
        weights = [one.detach().requires_grad_() for one in cells_of(layers=layers)._flat_weights]
        seed = torch.tensor([5], device=DEVICE) if rate else None
        given = (rows_of(3, 4).to(WIDE).requires_grad_(), keep, seed, weights, 2, rate, DTYPE)
        torch.library.opcheck(torch.ops.regard.fused_lstm.default, given, test_utils=("test_schema", "test_faketensor"))


def test_copies_of_weights_are_read_where_all_have_one():
    weights = list(cells_of()._flat_weights)
    layer = lstm_op.LSTMLayer(0, rows_of(), None, None, weights, 0.0, DTYPE)
    held = [keep_copy(one) for one in weights if one.dim() == 2]
    (first, second), *_ = layer.pairs()
    assert first is held[0].copy and second is held[2].copy
    with torch.no_grad():
        weights[4].mul_(2.0)  # its copy is no longer valid
    for place, pair in enumerate(layer.pairs()):
        assert pair[0] is weights[place] and pair[1] is weights[place + 4]


MODELS = {
    "pooled": (Problem.of(Tokens(11), OneOf(3)), {}),
    "past": (Problem.of(Tokens(11), NextToken(11)), {}),
    "other cells": (Problem.of(Tokens(11), OneOf(3)), {"cell": "gru"}),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_same_loss_and_gradients_with_and_without(name, padded, monkeypatch):
    problem, options = MODELS[name]
    torch.manual_seed(3)
    model = models.build("lstm-attention", problem, layers=2, dim=32, dropout=0.0, **options).to(DEVICE, WIDE)
    data, keep = torch.randint(1, 11, (B, N)).to(DEVICE), right_padding() if padded else None
    counted = [Counted(getattr(lstm_kernels, kernel)) for kernel in ("lstm_forward", "lstm_backward")]
    monkeypatch.setattr(lstm_kernels, "lstm_forward", counted[0])
    monkeypatch.setattr(lstm_kernels, "lstm_backward", counted[1])

    def loss():
        with autocast():
            found = model(Batch.of(data, keep))
        found = found if keep is None or found.dim() == 2 else found[keep]
        total = found.to(torch.float64).log_softmax(-1)[..., 1].mean()
        return [total, *torch.autograd.grad(total, list(model.parameters()))]

    mine = loss()
    assert [one.count for one in counted] == ([0, 0] if options else [2, 2])
    monkeypatch.setattr(fast_path, "enabled", False)
    theirs = loss()
    assert [one.count for one in counted] == ([0, 0] if options else [2, 2])
    for one, other in zip(mine, theirs, strict=True):
        off = (one - other).double().norm() / other.double().norm().clamp(min=1e-3)
        assert off < (5e-2 if HALVED else 1e-9)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # behind the break at torch's module
def test_a_compiled_model_uses_them_too(monkeypatch):
    counted = Counted(lstm_kernels.lstm_forward), Counted(lstm_kernels.lstm_backward)
    monkeypatch.setattr(lstm_kernels, "lstm_forward", counted[0])
    monkeypatch.setattr(lstm_kernels, "lstm_backward", counted[1])
    model = models.build("lstm-attention", MODELS["pooled"][0], layers=2, dim=32, dropout=0.0).to(DEVICE, WIDE)
    data = Batch.of(torch.randint(1, 11, (B, N)).to(DEVICE))
    with autocast():
        found = torch.compile(model, backend="aot_eager")(data)
        wanted = model(data)
    grads, others = (torch.autograd.grad(one.square().sum(), list(model.parameters())) for one in (found, wanted))
    assert [one.count for one in counted] == [4, 4]
    close([found, *grads], [wanted, *others])


REFUSED = {
    "width": (lambda: cells_of(width=24), "width is 24"),
    "biases": (lambda: cells_of(bias=False), "biases"),
    "projections": (lambda: cells_of(proj_size=8), "projections"),
    "gru": (lambda: nn.GRU(D, H, batch_first=True).to(DEVICE, WIDE), "a GRU"),
    "dtype": (lambda: cells_of().half(), "float16"),
    "everything dropped": (lambda: cells_of(layers=2, dropout=1.0), "dropped"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernels_do_not_know_is_refused_with_a_reason(case):
    make, why = REFUSED[case]
    with autocast():
        assert why in lstm.refusal(make(), rows_of().to(WIDE))


def test_circumstances_are_refused_with_a_reason(monkeypatch):
    cells, x = cells_of(), rows_of().to(WIDE)
    with autocast():
        assert lstm.refusal(cells, x) == ""
        assert "state" in lstm.refusal(cells, x, (x, x))
        assert "rows" in lstm.refusal(cells, x.expand(B, N, D)[:1, :1].expand(4097, 1, D))
        handle = cells.register_forward_hook(lambda *given: None)
        assert "hooks" in lstm.refusal(cells, x)
        handle.remove()
        handle = nn.modules.module.register_module_forward_hook(lambda *given: None)
        assert "hooks of all modules" in lstm.refusal(cells, x)
        handle.remove()
        cells.forward = cells.forward
        assert "hooks" in lstm.refusal(cells, x)
        del cells.forward
        torch.func.vmap(lambda rows: rows if "transformed" in lstm.refusal(cells, rows) else 1 / 0)(x[None])
    monkeypatch.setattr(fused_rows, "on_cpu", False)
    assert ("CUDA" if DEVICE == "cpu" else "autocast") in lstm.refusal(cells, x)
