"""A dynamic memory in few kernels beside the plain layer: outputs, gradients, bits, stacks, and when they are used."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import regard
from regard.nn import fast_path
from regard.nn.parts.heads import join_heads, split_heads
from regard_fast import fused_memory, fused_rows
from regard_fast.fused_memory import gradient_kernels, op, plain, read_kernels, refusal, stack_op, write_kernels
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows import layers
from regard_fast.mechanisms import row_maps
from regard_workbench.models.parts.stack import Stack
from tests.triton.conftest import HALVED
from tests.triton.test_fused_rows import DEVICE, DTYPE, TOLERANCE, WIDE, Counted, equal_up_to_rounding, graded, kernels

assert kernels  # a fixture
B, D, H = 3, 32, 2
# rows, slots, segment, update, both directions: one write and several, a short last segment, more slots than 16
CASES = [
    (7, 5, 4, "gru", True),
    (8, 3, 4, "memory", True),
    (7, 17, 3, "gru", True),
    (13, 2, 5, "memory", True),
    (11, 5, 3, "gru", False),
    (9, 7, 3, "memory", False),
    (5, 1, 1, "gru", False),
]


def layer_of(slots, segment, update="gru", both=True, dim=D, heads=H, dtype=torch.float64, **options):
    torch.manual_seed(11)
    made = regard.nn.build(
        "dynamic-memory",
        dim=dim,
        num_heads=heads,
        slots=slots,
        segment=segment,
        update=update,
        bidirectional=both,
        **options,
    ).to(DEVICE, dtype)
    for parameter in made.parameters():
        # With 0.4, gradients grow from segment to segment: rounding the inputs to bfloat16 changes them by up to 66 %.
        nn.init.normal_(parameter, std=0.15)
    return made


def projected(layer, rows):
    """What the maps of rows give the operator."""
    width = layer.dim // layer.num_heads
    return [split_heads(one(rows), width) for one in row_maps(layer).maps]


def rows_of(length, batch=B, dim=D):
    torch.manual_seed(5)
    return torch.randn(batch, length, dim, dtype=torch.float64, device=DEVICE, requires_grad=True)


def off(mine, theirs):
    """That of the keys' bias is zero."""
    return ((mine.double() - theirs).norm() / theirs.norm().clamp(min=1e-3)).item()


@pytest.mark.parametrize("case", CASES)
def test_the_plain_twin_is_the_layer(case):
    length, slots, segment, update, both = case
    layer, rows = layer_of(slots, segment, update, both), rows_of(length)
    starts, weights = refusal.tensors_of(layer)
    options = refusal.options_of(layer)
    found = plain.mixed(projected(layer, rows), starts, weights, *options.listed())
    torch.testing.assert_close(layer.reader.output_map(join_heads(found)), layer(rows))


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_all_gradients_are_those_of_the_plain_twin(case):
    length, slots, segment, update, both = case
    layer, rows = layer_of(slots, segment, update, both), rows_of(length)
    assert refusal.refusal(layer, B, length) == ""
    starts, weights = refusal.tensors_of(layer)
    options = refusal.options_of(layer)
    heads = [one.detach().requires_grad_() for one in projected(layer, rows)]
    wanted = plain.mixed(heads, starts, weights, *options.listed())
    pull = torch.randn_like(wanted)
    truth = torch.autograd.grad(wanted, [*heads, *starts, *weights], pull)
    ours = [one.detach().to(DTYPE).requires_grad_() for one in heads]
    trained = [one.detach().to(WIDE).requires_grad_() for one in (*starts, *weights)]
    found = op.run(ours, trained[: len(starts)], trained[len(starts) :], options)
    assert found.shape == wanted.shape and found.dtype == DTYPE
    grads = torch.autograd.grad(found, [*ours, *trained], pull.to(DTYPE))
    for mine, theirs in zip([found, *grads], [wanted, *truth], strict=True):
        assert mine.shape == theirs.shape
        assert off(mine, theirs) < TOLERANCE, mine.shape


def test_heads_and_gradients_of_any_layout_are_read():
    layer, rows = layer_of(5, 3, dtype=WIDE), rows_of(7)
    with torch.no_grad():
        heads = [one.to(DTYPE) for one in projected(layer, rows.to(WIDE))]
    odd = [heads[0].contiguous(), heads[1].mT.contiguous().mT, *heads[2:]]
    for one in (*heads, *odd):
        one.requires_grad_()
    first, second = (refusal.run(layer, given) for given in (heads, odd))
    assert torch.equal(first, second)
    pull = first.detach()[:, :, :1, :1].expand_as(first)  # strides of zero
    for one, other in zip(
        torch.autograd.grad(first, heads, pull.contiguous()), torch.autograd.grad(second, odd, pull), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", CASES[:3])
def test_bits_repeat_and_nothing_unwritten_or_outside_is_read(case):
    """What was allocated is full of NaN; `accesses.py` checks addresses."""
    length, slots, segment, update, both = case
    layer, rows = layer_of(slots, segment, update, both, dtype=WIDE), rows_of(length)
    with torch.no_grad():
        heads = [one.to(DTYPE) for one in projected(layer, rows.to(WIDE))]
    for one in heads:
        one.requires_grad_()
    starts, weights = refusal.tensors_of(layer)

    def graded():
        found = refusal.run(layer, heads)
        return found, *torch.autograd.grad(found.double().sin().sum(), [*heads, *starts, *weights])

    first = graded()
    torch.use_deterministic_algorithms(True)  # which also fills new memory
    try:
        assert torch.empty(3).isnan().all()
        second = graded()
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) and one.isfinite().all()


@pytest.mark.parametrize("update", ["gru", "memory"])
def test_a_second_derivative_is_that_of_the_layer(update):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    layer, rows = layer_of(3, 2, update), rows_of(5)

    def second(found):
        (first,) = torch.autograd.grad(found.sin().sum(), rows, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [rows, layer.slots, layer.writer.query_map.weight])

    mine = second(layer.reader.output_map(join_heads(refusal.run(layer, projected(layer, rows)))))
    for one, other in zip(mine, second(layer(rows)), strict=True):
        torch.testing.assert_close(one, other)


NAMES = {
    "write_forward": write_kernels,
    "read_forward": read_kernels,
    "write_backward": write_kernels,
    "read_backward": read_kernels,
    "memory_gradients": gradient_kernels,
    "rows_forward": row_kernels,
    "rows_backward": row_kernels,
    "weight_gradients": row_kernels,
}


@pytest.fixture
def launches(monkeypatch):
    """How often each kernel was launched."""
    made = {name: Counted(getattr(module, name)) for name, module in NAMES.items()}
    for name, module in NAMES.items():
        monkeypatch.setattr(module, name, made[name])
    return lambda: {name: one.count for name, one in made.items()}


def stack_of(attention="dynamic-memory(slots=5,segment=4,bidirectional=true)", count=2, **options):
    torch.manual_seed(3)
    stack = Stack(D, count, attention, num_heads=H, hidden=64, **options).to(DEVICE, WIDE)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("update", ["gru", "memory"])
def test_a_stack_is_one_operator_and_equals_its_modules(monkeypatch, kernels, launches, count, update):
    stack = stack_of(f"dynamic-memory(slots=5,segment=4,update={update},bidirectional=true)", count)
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    found = graded(stack, x, pull)
    rows = count + 1
    assert launches() == {
        "write_forward": count,
        "read_forward": count,
        "write_backward": count,
        "read_backward": count,
        "memory_gradients": 1,
        "rows_forward": rows,
        "rows_backward": rows,
        "weight_gradients": 0,
    }
    monkeypatch.setattr(fast_path, "enabled", False)
    equal_up_to_rounding(found, stack, x, pull)


def test_a_stack_as_one_operator_drops_as_its_pieces_do(monkeypatch, kernels, launches):
    stack = stack_of(dropout=0.3)
    x = torch.randn(B, 8, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)

    def drawn():
        torch.manual_seed(9)
        return graded(stack, x, pull)

    found = drawn()
    monkeypatch.setattr(layers, "_memories_as_one", lambda *given: None)
    for mine, theirs in zip(found, drawn(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert launches()["memory_gradients"] == 1 + 2 and launches()["weight_gradients"] == 3


def test_layers_that_differ_are_several_operators(kernels, launches):
    kinds = ("slots=5,segment=4", "slots=6,segment=4", "slots=5,segment=3", "slots=5,segment=4,update=memory")
    x = torch.randn(1, 8, D, dtype=WIDE)
    for other in kinds[1:]:
        stack = stack_of(f"dynamic-memory({kinds[0]}),dynamic-memory({other})")
        maps = [row_maps(layer.attention) for layer in stack.layers]
        assert layers._memories_as_one(list(stack.layers), maps, x) is None
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert stack(x.to(DEVICE)).shape == x.shape
    if DEVICE == "cpu":
        assert launches()["write_forward"] == 2


def test_a_second_derivative_of_a_stack_is_that_of_its_modules(monkeypatch, kernels):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    stack = stack_of()
    x = torch.randn(B, 5, D, dtype=WIDE, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad(stack(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, stack.layers[0].attention.slots])

    found = second()
    monkeypatch.setattr(fast_path, "enabled", False)
    for mine, theirs in zip(found, second(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_compiled_stack_takes_any_batch(monkeypatch, kernels):
    stack = stack_of(dropout=0.1)
    compiled = torch.compile(stack, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, 7, D, dtype=WIDE, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
            torch.manual_seed(9)
            found = compiled(x)
            torch.manual_seed(9)
            assert torch.equal(found, stack(x))
            found.sum().backward()


def test_shapes_for_the_compiler_are_those_of_the_kernels(monkeypatch):
    """Shape, strides and dtype: a compiler that is told others would read elsewhere."""
    layer, rows = layer_of(5, 3, dtype=WIDE), rows_of(7).detach()
    heads = [one.detach().to(DTYPE) for one in projected(layer, rows.to(WIDE))]
    starts, weights = ([one.detach() for one in group] for group in refusal.tensors_of(layer))
    options = refusal.options_of(layer).listed()

    def same(told, real):
        for one, other in zip(told, real, strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)

    found = op._forward(heads, starts, weights, *options)
    same(op._forward_shapes(heads, starts, weights, *options), found)
    given = (found[0], heads, starts, weights, *found[1:], *options)
    told, real = op._backward_shapes(*given), op._backward(*given)
    same([*told[0], told[1]], [*real[0], real[1]])
    monkeypatch.setattr(fused_rows, "on_cpu", True)
    stack = stack_of()
    maps = [row_maps(one.attention) for one in stack.layers]
    x = rows.to(WIDE)
    made, own = layers._memories_as_one(list(stack.layers), maps, x)
    flat = [one.detach() for one in layers._all_weights(list(stack.layers), maps, own)]
    last, kept = stack_op._forward(x, None, flat, *made.listed())
    told = stack_op._forward_shapes(x, None, flat, *made.listed())
    same([told[0], *told[1]], [last, *kept])
    given = (x, x, None, last, kept, flat, *made.listed())
    same(stack_op._backward_shapes(*given), stack_op._backward(*given))


def test_what_the_kernels_do_not_know_is_refused_with_a_reason(monkeypatch):
    def why(layer, batch=B, length=9):
        return refusal.refusal(layer, batch, length)

    layer = layer_of(5, 4)
    assert why(layer) == ""
    assert "33 slots" in why(layer_of(33, 4))
    assert "segments of 33" in why(layer_of(5, 33))
    assert "heads 8" in why(layer_of(5, 4, dim=16))
    assert "256 wide" in why(layer_of(5, 4, dim=256, heads=8))
    dropping = layer_of(5, 4, dropout=0.5)
    assert "dropout" in why(dropping)
    assert why(dropping.eval()) == ""
    assert "too many" in why(layer, batch=2**20)
    assert refusal.refusal(layer, 1200, 9) == "" and "too many" in refusal.refusal(layer, 1200, 9, layers=4)
    handle = layer.gate.register_forward_hook(lambda *given: None)
    assert "hooks" in why(layer)
    handle.remove()
    nn.utils.parametrizations.weight_norm(layer.writer.query_map)
    assert "nn.Linear" in why(layer)
    normed = layer_of(5, 4, "memory")
    normed.norm.bias = None
    assert "LayerNorm" in why(normed)
    monkeypatch.setattr(fused_memory, "enabled", False)
    assert "switched off" in why(layer_of(5, 4))
