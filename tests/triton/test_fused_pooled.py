"""The end of a classifier as one kernel: loss and gradients beside torch's, and when training uses it."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from regard.nn import fast_path
from regard_fast.fused_rows import head, head_op, plain, pooled_kernels
from regard_workbench import models
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors
from tests.triton.conftest import HALVED
from tests.triton.test_fused_head import ASKED, OPTIONS, both, step_of
from tests.triton.test_fused_rows import DEVICE, TOLERANCE, WIDE, Counted, kernels

assert kernels  # a fixture
B, N, D = 5, 7, 32


def given(outputs, dim=D, bias=True, kept=None, length=N):
    """Rows, a target for each example, what counts, and weights of a head."""
    torch.manual_seed(outputs)
    shapes = [(dim,), (dim,), (outputs, dim), *([(outputs,)] if bias else [])]
    weights = [torch.randn(shape, dtype=torch.float64, device=DEVICE) for shape in shapes]
    x = torch.randn(B, length, dim, dtype=torch.float64, device=DEVICE)
    targets = torch.randint(0, outputs, (B,), device=DEVICE)
    keep = None if kept is None else torch.arange(B, device=DEVICE) < kept
    return x, targets, keep, weights


def test_the_plain_twin_is_norm_mean_map_and_cross_entropy():
    x, targets, keep, weights = given(11, kept=3)
    norm, linear = nn.LayerNorm(D, dtype=torch.float64), nn.Linear(D, 11, dtype=torch.float64)
    named = {"weight": weights[0], "bias": weights[1]}
    pooled = torch.func.functional_call(norm.to(DEVICE), named, x).mean(1)
    logits = torch.func.functional_call(linear.to(DEVICE), {"weight": weights[2], "bias": weights[3]}, pooled)
    each = nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)
    total, count, mean = plain.head(x, targets, keep, weights, 1e-5, 0.1)
    torch.testing.assert_close(total, each[:3].sum())
    torch.testing.assert_close(mean, each[:3].mean())
    assert count == 3


CASES = {
    "digits": (10, {"length": 8}, 0.0),
    "one tile": (17, {"kept": 3}, 0.1),
    "tiles": (67, {"kept": 3}, 0.1),
    "no bias": (53, {"bias": False}, 0.1),
    "none counts": (11, {"kept": 0}, 0.1),
    "all count": (11, {"kept": B}, 0.0),
    "two outputs": (2, {}, 0.0),
    "one output": (1, {}, 0.3),
    "the most": (512, {}, 0.0),
    "narrow": (37, {"dim": 16}, 0.1),
    "wide": (71, {"dim": 256, "kept": 2}, 0.1),
    "one row": (11, {"length": 1}, 0.0),
    "blocks of rows": (11, {"length": 101, "kept": 4}, 0.0),
}


@pytest.mark.parametrize("asked", ["sum", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_every_gradient_are_those_of_cross_entropy(case, asked):
    outputs, options, smoothing = CASES[case]
    mine, theirs = both(*given(outputs, **options), smoothing, ASKED[asked])
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape and one.isfinite().all()
        assert (one.double() - other).norm() <= TOLERANCE * other.norm().clamp(min=1e-2)


def test_the_target_that_torch_ignores_is_ignored_but_counted():
    x, targets, keep, weights = given(67, kept=4)
    targets[1] = -100
    mine, theirs = both(x, targets, keep, weights, 0.1)
    for one, other in zip(mine, theirs, strict=True):
        assert (one.double() - other).norm() <= TOLERANCE * other.norm()
    assert mine[1] == 4 and not mine[3][1].any()  # after sum, count and mean, the gradient of the rows


@pytest.mark.parametrize("outputs", [11, 67])
@pytest.mark.parametrize("height", [-3000.0, 3000.0])
def test_padding_of_the_outputs_never_matters_however_low_or_high_the_logits(outputs, height):
    x, targets, keep, weights = given(outputs)
    weights[3] += height
    mine, theirs = both(x, targets, keep, weights, 0.1)
    for one, other in zip(mine, theirs, strict=True):
        assert one.isfinite().all()
        assert (one.double() - other).norm() <= max(TOLERANCE, 1e-7) * other.norm()


@pytest.mark.parametrize("wrong", [10, 15, 16, 128, -1])
def test_a_target_that_is_no_output_is_not_a_number(wrong):
    x, targets, keep, weights = given(10)
    targets[1] = wrong
    total, _, _ = head_op.run(x.to(WIDE), targets, keep, [one.to(WIDE) for one in weights], OPTIONS)
    assert total.isnan()


def test_bits_repeat_and_nothing_unwritten_is_read():
    x, targets, keep, weights = given(67, kept=3, length=41)

    def graded():
        rows, *trained = [one.detach().to(WIDE).requires_grad_() for one in (x, *weights)]
        total, count, _ = head_op.run(rows, targets, keep, trained, OPTIONS)
        return total, count, *torch.autograd.grad(total, [rows, *trained])

    first = graded()
    torch.use_deterministic_algorithms(True)  # which also fills new memory with NaN
    try:
        second = graded()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("result", [0, 2])
def test_a_second_derivative_is_that_of_cross_entropy(result):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    x, targets, keep, weights = given(11, kept=3)
    inputs = [one.requires_grad_() for one in (x, *weights)]

    def second(total):
        first = torch.autograd.grad(total.square(), inputs, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), inputs)

    mine = second(head_op.run(x, targets, keep, weights, OPTIONS)[result])
    theirs = second(plain.head(x, targets, keep, weights, 1e-5, 0.1)[result])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


PROBLEM = Problem.of(Vectors(5, length=N), OneOf(3))


def built(name, **options):
    torch.manual_seed(4)
    made = models.build(name, PROBLEM, layers=1, dim=D, num_heads=2, dropout=0.0, **options).to(DEVICE, WIDE)
    nn.init.normal_(made.head.logits.weight, std=0.5)
    return made


def batch_of(seed=0, **more):
    torch.manual_seed(seed)
    return Batch.of(torch.randn(B, N, 5, device=DEVICE), targets=torch.randint(0, 3, (B,), device=DEVICE), **more)


def curve(name, **options):
    """The losses of a few steps, and the weights after them."""
    model = built(name, **options)
    step = step_of(model, rate=0.01, smoothing=0.1)  # with 0.1 dynamic memory diverges, and rounding decides
    return [step([batch_of(number)]).loss for number in range(3)], list(model.parameters())


@pytest.mark.parametrize("name", ["static-transformer", "dynamic-transformer", "encoder"])
def test_training_with_and_without_logits_is_the_same(monkeypatch, kernels, name):
    loss = Counted(pooled_kernels.pooled_loss)
    monkeypatch.setattr(pooled_kernels, "pooled_loss", loss)
    mine, weights = curve(name)
    assert loss.count == 3
    monkeypatch.setattr(head, "MOST_OUTPUTS", 0)
    theirs, others = curve(name)
    assert loss.count == 3
    assert mine == pytest.approx(theirs, rel=1e-6 if not HALVED else 2e-2)  # the plain loss is float32
    for one, other in zip(weights, others, strict=True):
        size = other.norm().clamp(min=1e-6 if not HALVED else 1e-2)  # the bias of keys gets only rounding
        assert (one - other).norm() <= (1e-6 if not HALVED else 2e-2) * size


def test_a_compiled_step_is_one_graph_and_the_same(monkeypatch, kernels):
    loss = Counted(pooled_kernels.pooled_loss)
    monkeypatch.setattr(pooled_kernels, "pooled_loss", loss)
    model = built("static-transformer")
    step = step_of(model)
    losses = torch.compile(step._losses, fullgraph=True, backend="aot_eager")
    batch = batch_of()
    grads = []
    for run in (losses, step._losses):
        found, _ = run(batch, None)
        (found.total / found.count).backward()
        grads.append([found.total.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        model.zero_grad()
    assert loss.count == 2
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


UNPOOLED = {
    "first row": lambda: (built("encoder", pooling="first"), batch_of()),
    "before the head": lambda: (built("encoder", before_head="tanh"), batch_of()),
    "padding": lambda: (built("encoder"), batch_of(keep=torch.arange(N, device=DEVICE).expand(B, N) < 5)),
}


@pytest.mark.parametrize("case", UNPOOLED)
def test_what_the_kernel_does_not_pool_has_logits(kernels, case):
    model, batch = UNPOOLED[case]()
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert fast_path.loss(model, batch, 0.0, None) is None
        assert fast_path.loss(built("encoder"), batch_of(), 0.0, None).divided is not None


def test_refused_with_a_reason(kernels):
    stack, linear = Stack(D, 1, "multihead", num_heads=2), nn.Linear(D, 3)
    rows, targets = torch.randn(B, N, D, device=DEVICE), torch.zeros(B, dtype=torch.long, device=DEVICE)

    def why(targets, keep=None, pooled=True):
        return head.refusal(rows, stack.norm, linear, [stack], targets, keep, pooled)

    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert why(targets) == ""
        assert "for each row" in why(targets, pooled=False)
        assert "for each example" in why(torch.zeros(B, N, dtype=torch.long))
        assert "truth value" in why(targets, torch.ones(B))
