"""A static memory in one kernel each way beside the plain layer: outputs, gradients, bits, stacks, when it is used."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

import regard
from regard.nn import fast_path
from regard.nn.parts.heads import join_heads, split_heads
from regard_fast import fused_memory
from regard_fast.fused_memory import gradient_kernels, static, static_kernels
from regard_fast.fused_memory.factors import SlotFactors
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows import layers, short_kernels
from regard_fast.mechanisms import row_maps
from regard_workbench.models.parts.stack import Stack
from tests.triton.conftest import HALVED
from tests.triton.test_fused_memory import off, rows_of
from tests.triton.test_fused_rows import DEVICE, DTYPE, TOLERANCE, WIDE, Counted, equal_up_to_rounding, graded, kernels

assert kernels  # a fixture
B, D, H = 3, 32, 2
# rows and slots: few of both, one of each, more than a block of sixteen, the most
CASES = [(7, 5), (1, 3), (11, 1), (37, 17), (64, 32)]


def layer_of(slots, dim=D, heads=H, dtype=torch.float64, **options):
    torch.manual_seed(11)
    made = regard.nn.build("static-memory", dim=dim, num_heads=heads, slots=slots, **options).to(DEVICE, dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.4)
    return made


def projected(layer, rows):
    """What the maps of rows give the kernels."""
    return [split_heads(one(rows), layer.dim // layer.num_heads) for one in row_maps(layer).maps]


@pytest.mark.parametrize("case", CASES)
def test_the_plain_twin_is_the_layer(case):
    length, slots = case
    layer, rows = layer_of(slots), rows_of(length)
    found = static.mixed(projected(layer, rows), static.tensors_of(layer), static.options_of(layer))
    torch.testing.assert_close(layer.reader.output_map(join_heads(found)), layer(rows))


@pytest.mark.parametrize("case", CASES)
def test_a_layer_and_all_its_gradients_are_those_of_its_modules(monkeypatch, kernels, case):
    """Through a stack of one layer; the memory itself in float64, where a wrong formula shows."""
    length, slots = case
    stack = stack_of(f"static-memory(slots={slots})", 1)
    x = torch.randn(B, length, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    counted = Counted(static_kernels.static_backward)
    monkeypatch.setattr(static_kernels, "static_backward", counted)
    found = graded(stack, x, pull)
    assert counted.count >= 1  # the first time, it may be checked, too
    monkeypatch.setattr(fast_path, "enabled", False)
    equal_up_to_rounding(found, stack, x, pull)


@pytest.mark.parametrize("heads", [1, 4])
def test_heads_of_any_layout_and_width_are_read(heads):
    layer, rows = layer_of(5, dim=64, heads=heads, dtype=WIDE), rows_of(7, dim=64)
    with torch.no_grad():
        given = [one.to(DTYPE) for one in projected(layer, rows.to(WIDE))]
    odd = [given[0].contiguous(), given[1].mT.contiguous().mT, given[2]]
    weights, options = [one.detach() for one in static.tensors_of(layer)], static.options_of(layer)
    exact = static.mixed([one.double() for one in given], [one.double() for one in weights], options)
    first, second = static.forward(given, weights, options), static.forward(odd, weights, options)
    assert off(first[0], exact) < TOLERANCE
    pull = first[0][:, :, :1, :1].expand_as(first[0])  # strides of zero
    found = []
    for heads_given, (_, *kept), one in ((given, first, pull.contiguous()), (odd, second, pull)):
        factors = SlotFactors([static.sizes_of(weights)], *kept)
        found.append(static.heads_back(one, heads_given, weights, tuple(kept), options, factors, 0))
    assert torch.equal(first[0], second[0])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def stack_of(attention="static-memory(slots=5)", count=2, **options):
    torch.manual_seed(3)
    stack = Stack(D, count, attention, num_heads=H, hidden=64, **options).to(DEVICE, WIDE)
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.3)
    return stack


NAMES = {
    "static_forward": static_kernels,
    "static_backward": static_kernels,
    "memory_gradients": gradient_kernels,
    "rows_forward": row_kernels,
    "rows_backward": row_kernels,
    "weight_gradients": row_kernels,
    "short_forward": short_kernels,
    "short_backward": short_kernels,
}


@pytest.fixture
def launches(monkeypatch):
    """How often each kernel was launched."""
    made = {name: Counted(getattr(module, name)) for name, module in NAMES.items()}
    for name, module in NAMES.items():
        monkeypatch.setattr(module, name, made[name])
    return lambda: {name: one.count for name, one in made.items()}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stack_is_one_operator_and_equals_its_modules(monkeypatch, kernels, launches, count):
    stack = stack_of(count=count)
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    found = graded(stack, x, pull)
    rows = count + 1
    assert launches() == {
        "static_forward": count,
        "static_backward": count,
        "memory_gradients": 1,
        "rows_forward": rows,
        "rows_backward": rows,
        "weight_gradients": 0,
        "short_forward": 0,
        "short_backward": 0,
    }
    monkeypatch.setattr(fast_path, "enabled", False)
    equal_up_to_rounding(found, stack, x, pull)


def test_a_stack_drops_as_its_pieces_do(monkeypatch, kernels, launches):
    stack = stack_of(dropout=0.3)
    x = torch.randn(B, 8, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)

    def drawn():
        torch.manual_seed(9)
        return graded(stack, x, pull)

    found = drawn()
    monkeypatch.setattr(layers, "_memories_as_one", lambda *given: None)
    apart = drawn()
    # The pieces round at other places; the gradient of the keys' bias is nothing but that rounding.
    least = 1.0 if not HALVED else max(theirs.norm().item() for theirs in apart) / 10
    for mine, theirs in zip(found, apart, strict=True):
        assert (mine - theirs).norm() <= TOLERANCE * theirs.norm().clamp(min=least)
    assert launches()["memory_gradients"] == 1 and launches()["weight_gradients"] == 5


def test_bits_repeat_and_nothing_unwritten_or_outside_is_read(kernels):
    """What was allocated is full of NaN; `accesses.py` checks addresses."""
    stack = stack_of("static-memory(slots=17)")
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    first = graded(stack, x, pull)
    torch.use_deterministic_algorithms(True)  # which also fills new memory
    try:
        assert torch.empty(3).isnan().all()
        second = graded(stack, x, pull)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) and one.isfinite().all()


def test_layers_that_differ_are_several_operators(kernels, launches):
    x = torch.randn(1, 8, D, dtype=WIDE, device=DEVICE)
    for other in ("static-memory(slots=6)", "dynamic-memory(slots=5)", "multihead"):
        stack = stack_of(f"static-memory(slots=5),{other}")
        maps = [row_maps(layer.attention) for layer in stack.layers]
        assert layers._memories_as_one(list(stack.layers), maps, x) is None
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
            assert stack(x).shape == x.shape
    assert launches()["static_forward"] == 0 and launches()["rows_forward"] > 0


def test_a_second_derivative_is_that_of_the_modules(monkeypatch, kernels):
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


def test_a_compiled_stack_takes_any_batch(kernels):
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


def test_what_the_kernels_do_not_know_is_refused_with_a_reason(monkeypatch):
    def why(layer, batch=B, length=9, count=1):
        return static.refusal(layer, batch, length, count)

    layer = layer_of(5)
    assert why(layer) == ""
    assert "33 slots" in why(layer_of(33))
    assert "65 keys" in why(layer, length=65) and why(layer, length=64) == ""
    assert "heads 8" in why(layer_of(5, dim=16))
    assert "256 wide" in why(layer_of(5, dim=256, heads=8))
    dropping = layer_of(5, dropout=0.5)
    assert "dropout" in why(dropping)
    assert why(dropping.eval()) == ""
    assert "too many" in why(layer, batch=2**20)
    assert why(layer, 20000) == "" and "too many" in why(layer, 20000, count=2)
    for one in (layer.writer, layer.writer.query_map, layer.reader.key_map, layer.norm):
        handle = one.register_forward_hook(lambda *given: None)
        assert "hooks" in why(layer)
        handle.remove()
    assert why(layer) == ""
    nn.utils.parametrizations.weight_norm(layer.writer.query_map)
    assert "nn.Linear" in why(layer)
    bare = layer_of(5)
    bare.norm.bias = None
    assert "gain and shift" in why(bare)
    monkeypatch.setattr(fused_memory, "enabled", False)
    assert "switched off" in why(layer_of(5))
