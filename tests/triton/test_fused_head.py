"""The end of a model as one kernel: loss and gradients beside torch's cross-entropy, and when training uses it."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from regard.nn import fast_path
from regard_fast import fused_rows
from regard_fast.fused_rows import head, head_kernels, head_op, op, plain
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows.head_op import HeadOptions
from regard_fast.takers import losses
from regard_workbench import models
from regard_workbench.models.decoder import Decoder
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import EachOf, NextToken, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.training import Config, Optim, hardware
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.engines.engine import NonFinite
from tests.triton.conftest import HALVED
from tests.triton.test_fused_rows import DEVICE, DTYPE, TOLERANCE, WIDE, Counted, kernels

assert kernels  # a fixture
B, N, D = 3, 7, 32


def given(outputs, dim=D, bias=True, kept=None, length=N):
    """Rows, targets, what counts, and weights of a head."""
    torch.manual_seed(outputs)
    shapes = [(dim,), (dim,), (outputs, dim), *([(outputs,)] if bias else [])]
    weights = [torch.randn(shape, dtype=torch.float64, device=DEVICE) for shape in shapes]
    x = torch.randn(B, length, dim, dtype=torch.float64, device=DEVICE)
    targets = torch.randint(0, outputs, (B, length), device=DEVICE)
    keep = None if kept is None else torch.rand(B, length, device=DEVICE) < kept
    return x, targets, keep, weights


def three_times(total, mean):
    return 3 * total


# What is differentiated: the sum of the losses, as with several batches in a step, their mean, or both.
ASKED = {"sum": three_times, "mean": lambda total, mean: 3 * mean, "both": lambda total, mean: 3 * total - 2 * mean}


def both(x, targets, keep, weights, smoothing, asked=three_times):
    """Loss, count, mean and all gradients of what is asked, by the kernel and by torch in float64."""
    found = []
    for run, dtype in ((head_op.run, WIDE), (plain.head, torch.float64)):
        rows, *trained = [one.detach().to(dtype).requires_grad_() for one in (x, *weights)]
        options = (HeadOptions(1e-5, smoothing, DTYPE),) if run is head_op.run else (1e-5, smoothing)
        total, count, mean = run(rows, targets, keep, trained, *options)
        grads = torch.autograd.grad(asked(total, mean), [rows, *trained])
        found.append([total, count, mean, *grads])
    return found


CASES = {
    "a tile": (67, {}, 0.0),
    "some ignored": (67, {"kept": 0.5}, 0.0),
    "smoothed": (67, {"kept": 0.5}, 0.1),
    "no bias": (53, {"bias": False}, 0.1),
    "all ignored": (67, {"kept": 0.0}, 0.1),
    "none ignored": (67, {"kept": 1.0}, 0.0),
    "few outputs": (2, {"kept": 0.7}, 0.0),
    "one output": (1, {}, 0.3),
    "tiles": (307, {"kept": 0.7}, 0.2),
    "tiles without bias": (131, {"bias": False}, 0.0),
    "the most": (512, {}, 0.0),
    "narrow": (37, {"dim": 16}, 0.1),
    "wide": (71, {"dim": 256, "kept": 0.5}, 0.1),
    "blocks of rows": (11, {"length": 101, "kept": 0.9}, 0.0),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("case", CASES)
def test_the_loss_and_every_gradient_are_those_of_cross_entropy(case, asked):
    outputs, options, smoothing = CASES[case]
    mine, theirs = both(*given(outputs, **options), smoothing, ASKED[asked])
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape and one.isfinite().all()
        assert (one.double() - other).norm() <= TOLERANCE * other.norm().clamp(
            min=1e-2
        )  # of one output all gradients are 0


def test_the_target_that_torch_ignores_is_ignored_but_counted():
    x, targets, keep, weights = given(67, kept=0.8)
    targets[0, :4] = -100
    mine, theirs = both(x, targets, keep, weights, 0.1)
    for one, other in zip(mine, theirs, strict=True):
        assert (one.double() - other).norm() <= TOLERANCE * other.norm()
    assert mine[1] == keep.sum()


@pytest.mark.parametrize("outputs", [67, 131])
@pytest.mark.parametrize("height", [-3000.0, 3000.0])
def test_padding_of_the_outputs_never_matters_however_low_or_high_the_logits(outputs, height):
    x, targets, keep, weights = given(outputs)
    weights[3] += height
    mine, theirs = both(x, targets, keep, weights, 0.1)
    for one, other in zip(mine, theirs, strict=True):
        assert one.isfinite().all()
        assert (one.double() - other).norm() <= max(TOLERANCE, 1e-7) * other.norm()


@pytest.mark.parametrize("wrong", [67, 90, 127, 128, -1])
def test_a_target_that_is_no_output_is_not_a_number(wrong):
    x, targets, keep, weights = given(67)
    targets[1, 3] = wrong
    total, _, _ = head_op.run(x.to(WIDE), targets, keep, [one.to(WIDE) for one in weights], OPTIONS)
    assert total.isnan()


OPTIONS = HeadOptions(1e-5, 0.1, DTYPE)


def test_bits_repeat():
    x, targets, keep, weights = given(131, kept=0.6, length=41)

    def graded():
        rows, *trained = [one.detach().to(WIDE).requires_grad_() for one in (x, *weights)]
        total, count, _ = head_op.run(rows, targets, keep, trained, OPTIONS)
        return total, count, *torch.autograd.grad(total, [rows, *trained])

    assert all(torch.equal(one, other) for one, other in zip(graded(), graded(), strict=True))


@pytest.mark.parametrize("result", [0, 2])
def test_a_second_derivative_is_that_of_cross_entropy(result):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    x, targets, keep, weights = given(67, kept=0.6)
    inputs = [one.requires_grad_() for one in (x, *weights)]

    def second(total):
        first = torch.autograd.grad(total.square(), inputs, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), inputs)

    mine = second(head_op.run(x, targets, keep, weights, OPTIONS)[result])
    theirs = second(plain.head(x, targets, keep, weights, 1e-5, 0.1)[result])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("tile", [(16, 32), (32, 32)])
def test_gradients_in_other_tiles_are_the_same(monkeypatch, tile):
    monkeypatch.setattr(op.TUNING, "grad_tall", tile[0])
    monkeypatch.setattr(op.TUNING, "grad_width", tile[1])
    mine, theirs = both(*given(67, kept=0.5), 0.1)
    for one, other in zip(mine, theirs, strict=True):
        assert (one.double() - other).norm() <= TOLERANCE * other.norm()


LANGUAGE = Problem.of(Tokens(67, length=N), NextToken(67))
MODELS = {
    "decoder": (LANGUAGE, {}),
    "decoder, untied": (LANGUAGE, {"tied": False, "head_bias": False}),
    "encoder": (Problem.of(Tokens(67), EachOf(67)), {}),
    "transformer": (Problem.of(Tokens(41), Writes(67, N, 1, 2)), {}),
    "gla": (LANGUAGE, {}),
    "dynamic-transformer": (LANGUAGE, {}),
    "transformer-xl": (LANGUAGE, {}),
}
LEFT_OUT = {"transformer-xl": 0}  # its rows are made piece by piece, each normalised


def built(name):
    torch.manual_seed(4)
    problem, options = MODELS[name]
    made = models.build(name.split(",")[0], problem, layers=1, dim=D, num_heads=2, dropout=0.0, **options).to(
        DEVICE, WIDE
    )
    nn.init.normal_(made.head.logits.weight, std=0.5)
    return made


def batch_for(name, seed=0, kept=0.8):
    torch.manual_seed(seed)
    inputs = torch.randint(3, 41, (B, N), device=DEVICE)
    targets = torch.randint(3, 67, (B, N), device=DEVICE)
    return Batch.of(inputs, None, targets, torch.rand(B, N, device=DEVICE) < kept)


def step_of(model, rate=0.1, **options):
    precision = "bf16-mixed" if HALVED else "32-true"
    config = complete(Config(task="language", model="decoder", device=DEVICE, precision=precision))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    device = hardware.prepare(config)
    return CapturableStep(device, device.accelerator.prepare(model), optimizer, Optim(**options))


def curve(name, steps=3, **options):
    """The losses of a few steps, and the weights after them."""
    model = built(name)
    step = step_of(model, **options)
    found = [step([batch_for(name, number)]).loss for number in range(steps)]
    return found, list(model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_training_with_and_without_logits_is_the_same(monkeypatch, kernels, name):
    loss = Counted(head_kernels.head_loss)
    monkeypatch.setattr(head_kernels, "head_loss", loss)
    counted = Counted(row_kernels.weight_gradients)
    monkeypatch.setattr(row_kernels, "weight_gradients", counted)
    mine, weights = curve(name, smoothing=0.1)
    assert counted.count == 3 or "decoder" not in name  # one launch for all weights of a step
    assert loss.count == LEFT_OUT.get(name, 3)
    monkeypatch.setattr(head, "MOST_OUTPUTS", 0)
    theirs, others = curve(name, smoothing=0.1)
    assert loss.count == LEFT_OUT.get(name, 3)
    # The plain loss is computed in float32.
    assert mine == pytest.approx(theirs, rel=1e-6 if not HALVED else 2e-2)
    for one, other in zip(weights, others, strict=True):
        # The bias of keys gets no gradient but rounding, which in half precision moves it by about 1e-4.
        size = other.norm().clamp(min=1e-6 if not HALVED else 1e-2)
        assert (one - other).norm() <= (1e-6 if not HALVED else 2e-2) * size


def test_a_compiled_step_is_one_graph_and_the_same(monkeypatch, kernels):
    loss = Counted(head_kernels.head_loss)
    monkeypatch.setattr(head_kernels, "head_loss", loss)
    model = built("decoder")
    step = step_of(model)
    forward = torch.compile(step._losses, fullgraph=True, backend="aot_eager")
    batch = batch_for("decoder")
    for found, _ in (forward(batch, None), step._losses(batch, None)):
        (found.total / found.count).backward()
        grads = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
    assert loss.count == 2
    again, _ = forward(batch, None)
    assert (again.total, again.count) == (found.total, found.count)
    (again.total / again.count).backward()
    for parameter, wanted in zip(model.parameters(), grads, strict=True):
        torch.testing.assert_close(parameter.grad, wanted)


def test_a_wrong_target_stops_training(kernels):
    step = step_of(built("decoder"))
    batch = batch_for("decoder", kept=1.0)
    batch.targets[0, 0] = 67
    with pytest.raises(NonFinite):
        step([batch])


def test_logits_are_left_out_only_where_nothing_but_the_loss_of_the_model_needs_them(kernels):
    model, batch = built("decoder"), batch_for("decoder")

    def computed(model, batch=batch):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
            return fast_path.loss(model, batch, 0.0, None)

    assert model(batch).shape == (B, N, 67)
    assert computed(model).divided is not None
    with torch.no_grad():
        assert computed(model) is None
    model.loss = lambda outputs, batch, smoothing: (outputs.sum(), batch.target_keep.sum())
    assert computed(model) is None
    assert step_of(built("decoder")).loss_alone and not step_of(built("decoder"), consistency=0.5).loss_alone
    hooks = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
    for register in hooks:
        hooked = built("decoder")
        getattr(hooked, register)(lambda *given: None)
        assert computed(hooked) is None
    replaced = built("decoder")
    replaced.forward = replaced.forward
    assert computed(replaced) is None

    class Other(Decoder):
        def loss(self, outputs, batch, smoothing=0.0):
            return super().loss(outputs, batch, smoothing)

    assert computed(Other(LANGUAGE, layers=1, dim=D).to(DEVICE, WIDE)) is None


REFUSED = {
    "outputs": (lambda stack, linear, batch: setattr(linear, "out_features", 513), "more than 512"),
    "rms": (lambda stack, linear, batch: setattr(stack, "norm", nn.RMSNorm(D)), "LayerNorm"),
    "hook of the norm": (lambda stack, linear, batch: stack.norm.register_forward_hook(print), "hooks"),
    "hook of the stack": (lambda stack, linear, batch: stack.register_forward_pre_hook(print), "hooks"),
    "hook of the map": (lambda stack, linear, batch: linear.register_forward_hook(print), "hooks"),
    "targets": (lambda stack, linear, batch: batch.pop(0), "one class"),
    "truth": (lambda stack, linear, batch: batch.__setitem__(1, torch.ones(B, N)), "truth value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernel_does_not_know_is_refused_with_a_reason(kernels, case):
    change, why = REFUSED[case]
    stack, linear = Stack(D, 1, "multihead", num_heads=2), nn.Linear(D, 67)
    rows = torch.randn(B, N, D)
    asked = [torch.zeros(B, N, dtype=torch.long), torch.ones(B, N, dtype=torch.bool)]

    def refusal():
        return head.refusal(rows.to(DEVICE), stack.norm, linear, [stack], *(*asked, None)[:2])

    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert refusal() == ""
        change(stack, linear, asked)
        assert why in refusal()


def test_circumstances_are_refused_with_a_reason(monkeypatch, kernels):
    model, batch = built("decoder"), batch_for("decoder")
    model.head.row_scale = 0.5
    rows, _ = model.embedded(batch)
    assert "multiplies" in losses.refused_head(model.stack, model.head, batch, rows)
    model.head.row_scale = 1.0
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert losses.refused_head(model.stack, model.head, batch, rows) == ""
        assert losses.refusal(model, batch) == ""
        monkeypatch.setattr(fused_rows, "on_cpu", False)
        assert "CUDA" in losses.refusal(model, batch) or DEVICE == "cuda"
