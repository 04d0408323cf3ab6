"""Rows of vectors in one kernel, and the gradients of their map in another, beside the modules of an embedding."""

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from regard.formula import dropout
from regard.nn import fast_path
from regard_fast.fused_rows import vector_kernels, vectors
from regard_fast.takers import embeddings
from regard_workbench import models
from regard_workbench.models.parts.embedding import StreamEmbedding
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors
from tests.triton.conftest import HALVED
from tests.triton.test_fused_rows import DEVICE, DTYPE, TOLERANCE, WIDE, Counted, kernels

assert kernels  # a fixture
B, N, D = 3, 7, 32


def embedding(width=5, dim=D, positions="sinusoidal", rate=0.0, dtype=WIDE, **options):
    torch.manual_seed(2)
    made = StreamEmbedding(Vectors(width, length=N), dim, positions=positions, dropout=rate, **options)
    nn.init.normal_(made.rows.bias)
    return made.to(DEVICE, dtype)


def graded(module, data, pull):
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        found = module(data)
    return found, *torch.autograd.grad(found, list(module.parameters()), pull.to(found.dtype))


CASES = [
    (5, 7, D, "sinusoidal"),
    (1, 3, 16, "none"),
    (17, 41, 64, "sinusoidal"),
    (64, 7, 256, "none"),
    (8, 64, 128, "none"),
]


@pytest.mark.parametrize("case", CASES)
def test_rows_and_gradients_are_those_of_the_modules(monkeypatch, kernels, case):
    width, length, dim, positions = case
    counted = [Counted(getattr(vector_kernels, name)) for name in ("embed_vectors", "vector_gradients")]
    for one in counted:
        monkeypatch.setattr(vector_kernels, one.kernel.fn.__name__, one)
    made = embedding(width, dim, positions)
    data = torch.randn(B, length, width, device=DEVICE, dtype=WIDE)
    pull = torch.randn(B, length, dim, device=DEVICE, dtype=WIDE)
    found = graded(made, data, pull)
    assert [one.count for one in counted] == [1, 1]
    monkeypatch.setattr(fast_path, "enabled", False)
    exact = copy.deepcopy(made).double()
    rows = exact(data.double())
    wanted = [rows, *torch.autograd.grad(rows, list(exact.parameters()), pull.double())]
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == WIDE and mine.shape == theirs.shape
        assert (mine.double() - theirs).norm() <= TOLERANCE * theirs.norm()


@pytest.mark.parametrize("waves", [False, True])
def test_dropout_is_the_hash_forward_and_backward(waves):
    made, rate = embedding(), 0.3
    data = torch.randn(B, 29, 5, device=DEVICE, dtype=WIDE)
    seed = torch.tensor([987654321987654321], device=DEVICE)
    weights = [one.detach().clone().requires_grad_() for one in made.rows.parameters()]
    found = torch.ops.regard.fused_vectors.default(data, *weights, seed, rate, waves, DTYPE)
    wanted = vectors.plain(data, *weights, seed, rate, waves)
    assert torch.equal(found == 0, wanted == 0) and 0.2 < (found == 0).double().mean() < 0.4
    pull = torch.randn_like(found)
    grads = torch.autograd.grad(found, weights, pull), torch.autograd.grad(wanted, weights, pull)
    for mine, theirs in zip([found, *grads[0]], [wanted, *grads[1]], strict=True):
        assert (mine - theirs).norm() <= TOLERANCE * theirs.norm()


def test_training_drops_anew_each_time_and_evaluation_nothing(kernels):
    made = embedding(rate=0.3)
    data = torch.randn(B, N, 5, device=DEVICE, dtype=WIDE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        torch.manual_seed(9)
        first, second = made(data), made(data)
        torch.manual_seed(9)
        assert torch.equal(first, made(data)) and not torch.equal(first == 0, second == 0)
        seed = dropout.draw_seed(data.device)
        made.eval()
        assert (made(data) != 0).all() and not torch.equal(seed, dropout.draw_seed(data.device))


def test_bits_repeat():
    made = embedding(17, 64)
    data = torch.randn(B, 131, 17, device=DEVICE, dtype=WIDE)
    weight = made.rows.weight.detach()
    grad, seed = torch.randn(B, 131, 64, device=DEVICE, dtype=WIDE), torch.tensor([5], device=DEVICE)
    given = (grad, data, weight, seed, 0.2, True, DTYPE)
    for one, other in zip(vectors._backward(*given), vectors._backward(*given), strict=True):
        assert torch.equal(one, other)


def test_any_layout_of_data_and_gradient_is_read():
    made = embedding()
    data = torch.randn(B, 5, N, device=DEVICE, dtype=WIDE).mT
    weights, given = [one.detach() for one in made.rows.parameters()], (None, 0.0, True, DTYPE)
    found = vectors._forward(data, *weights, *given)
    assert torch.equal(found, vectors._forward(data.contiguous(), *weights, *given))
    grad = torch.randn(B, N, 1, device=DEVICE, dtype=WIDE).expand(B, N, D)
    mine = vectors._backward(grad, data, weights[0], *given)
    theirs = vectors._backward(grad.contiguous(), data.contiguous(), weights[0], *given)
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_a_second_derivative_is_that_of_the_modules(monkeypatch, kernels):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    made, data = embedding(), torch.randn(B, N, 5, dtype=WIDE)

    def second():
        weights = list(made.rows.parameters())
        first = torch.autograd.grad(made(data).sin().sum(), weights, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), weights)

    found = second()
    monkeypatch.setattr(fast_path, "enabled", False)
    for mine, theirs in zip(found, second(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # behind the break at torch's LSTM
@pytest.mark.parametrize("name", ["static-transformer", "dynamic-transformer", "lstm-attention", "encoder"])
@pytest.mark.parametrize("compiled", [False, True])
def test_models_of_vectors_use_the_kernels(monkeypatch, kernels, name, compiled):
    forward, backward = (Counted(getattr(vector_kernels, one)) for one in ("embed_vectors", "vector_gradients"))
    monkeypatch.setattr(vector_kernels, "embed_vectors", forward)
    monkeypatch.setattr(vector_kernels, "vector_gradients", backward)
    model = models.build(name, Problem.of(Vectors(5, length=N), OneOf(3)), layers=1, dim=D).to(DEVICE)
    read = torch.compile(model, backend="aot_eager") if compiled else model
    with torch.autocast(DEVICE, torch.bfloat16):
        for batch in (B, B + 2):
            found = read(Batch.of(torch.randn(batch, N, 5, device=DEVICE)))
            found.float().square().sum().backward()
    assert (forward.count, backward.count) == (2, 2)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_what_the_kernels_do_not_know_is_refused_with_a_reason(kernels):
    data = torch.randn(B, N, 5, device=DEVICE, dtype=WIDE)

    def why(made=None, given=data, rate=0.0):
        made = made or embedding()
        made.dropout.p = rate
        with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
            return embeddings.refusal(made, given)

    assert why() == ""
    assert "width of at most 64" in why(embedding(65), torch.randn(B, N, 65, device=DEVICE, dtype=WIDE))
    assert "of the data" in why(given=data.clone().requires_grad_())
    assert "width is 24" in why(embedding(dim=24))
    assert "sinusoidal" in why(embedding(positions="learned"))
    assert "normalised" in why(embedding(norm="layer"))
    assert "dropped" in why(rate=1.0)
    assert "more than 4096 rows" in why(given=data.new_zeros(2, 2049, 5))
    bare = embedding()
    bare.rows.bias = None
    assert "bias" in why(bare)
    for choose in (lambda made: made.rows, lambda made: made.dropout, lambda made: made.positions):
        hooked = embedding()
        choose(hooked).register_forward_hook(lambda *given: None)
        assert "hooks" in why(hooked)


def test_positions_that_begin_later_are_those_of_the_modules(monkeypatch, kernels):
    made, data = embedding(), torch.randn(B, N, 5, device=DEVICE, dtype=WIDE)
    counted = Counted(vector_kernels.embed_vectors)
    monkeypatch.setattr(vector_kernels, "embed_vectors", counted)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        whole, late = made(data), made(data[:, 3:], offset=3)
    assert counted.count == 1
    assert (whole[:, 3:] - late).norm() <= TOLERANCE * late.norm()
