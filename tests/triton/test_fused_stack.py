"""Attention over few keys in one kernel, and stacks of layers as one operator, beside the plain formula and modules."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

pytest.importorskip("triton")

import regard
from regard.implementations import gpu
from regard.nn import fast_path
from regard_fast.fused_memory import static
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows import layers, short_attention, short_kernels
from regard_fast.fused_rows.short_attention import LONGEST, PlainAttention
from regard_fast.mechanisms import row_maps
from regard_workbench.models.parts.stack import Stack
from tests.triton.conftest import HALVED
from tests.triton.test_fused_rows import DEVICE, DTYPE, TOLERANCE, WIDE, Counted, graded, kernels

assert kernels  # a fixture
B, H, WIDTH, D = 3, 2, 16, 32


def heads(queries, keys, width=WIDTH, batch=B):
    """Queries, keys and values as the maps of rows store them: the heads of a row side by side."""
    torch.manual_seed(11)
    sizes = (queries, keys, keys)
    made = [torch.randn(batch, n, H, width, dtype=torch.float64, device=DEVICE) for n in sizes]
    return [one.transpose(1, 2) for one in made]


def off(mine, theirs):
    return ((mine.double() - theirs).norm() / theirs.norm().clamp(min=1e-9)).item()


@pytest.mark.parametrize("sizes", [(7, 7), (5, 29), (1, 37), (LONGEST, LONGEST), (23, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_short_attention_and_its_gradients_are_those_of_the_formula(sizes, causal, width=WIDTH):
    queries, keys = sizes
    plain = PlainAttention(causal, 0.3)
    if causal and keys < queries:
        assert "see nothing" in plain.refusal(queries, keys, width)
        return
    assert plain.refusal(queries, keys, width) == ""
    exact = [one.requires_grad_() for one in heads(queries, keys, width)]
    mask = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE).tril(keys - queries) if causal else None
    wanted = F.scaled_dot_product_attention(*exact, attn_mask=mask, scale=0.3)
    pull = torch.randn_like(wanted)
    ours = [one.detach().to(DTYPE).requires_grad_() for one in exact]
    found = plain.run(*ours)
    assert found.shape == wanted.shape and found.stride(3) == 1 and found.stride(1) == width
    grads = torch.autograd.grad(found, ours, pull.to(DTYPE))
    truth = torch.autograd.grad(wanted, exact, pull)
    for mine, theirs in zip([found, *grads], [wanted, *truth], strict=True):
        if theirs.norm() > 1e-12:  # a single key gets no gradient
            assert off(mine, theirs) < TOLERANCE


@pytest.mark.parametrize("width", short_attention.WIDTHS)
def test_blocks_of_every_size_are_right_or_refused(width):
    """Of the sizes that a launch can have: a compiler may get the transposed products of some of them wrong."""
    for queries in (13, 29, 61):
        for keys in (11, 31, 53):
            if PlainAttention(False, 0.3).refusal(queries, keys, width) == "":
                test_short_attention_and_its_gradients_are_those_of_the_formula((queries, keys), False, width)


def test_the_compilers_fault_is_a_refusal_that_names_the_sizes(monkeypatch):
    monkeypatch.setattr(gpu, "_has_faulty_compiler", lambda: True)
    for module in (short_attention, static):
        monkeypatch.setattr(module, "_is_wrong", lambda *sizes: True)
    wrong = {
        (queries, keys)
        for queries in (13, 16, 17, 33, 64)
        for keys in (5, 16, 17, 32, 33, 64)
        if "wrongly on this GPU" in PlainAttention(False, 0.3).refusal(queries, keys, WIDTH)
    }
    assert wrong == {(queries, keys) for queries in (33, 64) for keys in (5, 16, 17, 32)}
    memory = regard.nn.build("static-memory", dim=D, num_heads=H, slots=8)
    assert "33 rows and 8 slots wrongly" in static.refusal(memory, B, 33)  # where its rows ask the slots
    assert static.refusal(memory, B, 32) == ""


@pytest.mark.parametrize("sizes", [(64, 16, 32), (16, 64, 16)])
def test_the_check_of_a_compiler_finds_a_kernel_right_and_a_wrong_one_wrong(monkeypatch, sizes):
    """Its first use of a size runs the kernel and compares it with the formula."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self.to(DEVICE))
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.to(DTYPE))
    queries, keys, width = sizes
    before = torch.get_rng_state()
    assert not short_attention._is_wrong.__wrapped__(queries, keys, width)
    assert not static._is_wrong.__wrapped__(queries, keys, 2 * width, width)
    assert torch.equal(torch.get_rng_state(), before)
    for module, name in ((short_attention, "_backward"), (static, "heads_back")):
        right = getattr(module, name)
        transposed = lambda *given, right=right: [*right(*given)[:2], right(*given)[2].roll(1, 2)]  # noqa: E731
        monkeypatch.setattr(module, name, transposed)
    assert short_attention._is_wrong.__wrapped__(queries, keys, width)
    assert static._is_wrong.__wrapped__(queries, keys, 2 * width, width)


def test_short_attention_reads_any_layout():
    query, key, value = heads(7, 11)
    wanted = F.scaled_dot_product_attention(query, key, value, scale=0.5)
    plain = PlainAttention(False, 0.5)
    odd = [query[:1].expand(B, -1, -1, -1), key.contiguous(), value.mT.contiguous().mT]
    assert off(plain.run(*(one.to(DTYPE) for one in (query, key.contiguous(), value))), wanted) < TOLERANCE
    once = F.scaled_dot_product_attention(*odd, scale=0.5)
    assert off(plain.run(*(one.to(DTYPE) for one in odd)), once) < TOLERANCE


def test_too_long_and_odd_widths_are_refused_with_a_reason():
    plain = PlainAttention(False, 1.0)
    assert f"1 to {LONGEST}" in plain.refusal(LONGEST + 1, 3, 16)
    assert f"1 to {LONGEST}" in plain.refusal(3, 0, 16)
    assert "24 wide" in plain.refusal(3, 3, 24)


def test_a_second_derivative_of_short_attention_is_that_of_the_formula():
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    inputs = [one.requires_grad_() for one in heads(5, 5)]

    def second(found):
        first = torch.autograd.grad(found.sin().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(one.square().sum() for one in first), inputs)

    mine = second(PlainAttention(True, 0.3).run(*inputs))
    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's kernels that has a second derivative
        theirs = second(F.scaled_dot_product_attention(*inputs, is_causal=True, scale=0.3))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def stack_of(count=2, attention="causal", **options):
    torch.manual_seed(3)
    causal = attention == "causal"
    return Stack(D, count, attention, num_heads=H, causal=causal, hidden=96, **options).to(DEVICE, WIDE)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("attention", ["causal", "multihead(scale=0.4)"])
def test_a_stack_as_one_operator_equals_its_modules(monkeypatch, kernels, count, attention):
    stack = stack_of(count, attention)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    weights = Counted(row_kernels.weight_gradients)
    monkeypatch.setattr(row_kernels, "weight_gradients", weights)
    found = graded(stack, x, pull)
    assert weights.count == 1
    monkeypatch.setattr(fast_path, "enabled", False)
    for mine, theirs in zip(found, graded(stack, x, pull), strict=True):
        error = (mine - theirs).norm() / theirs.norm().clamp(min=1.0)  # that of the keys' bias is zero
        assert error < (TOLERANCE if not HALVED else 5e-2)


def test_a_stack_as_one_operator_drops_as_its_pieces_do(monkeypatch, kernels):
    stack = stack_of(dropout=0.3)
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)

    def drawn():
        torch.manual_seed(9)
        return graded(stack, x, pull)

    found = drawn()
    monkeypatch.setattr(layers, "_as_one", lambda *given: None)
    weights = Counted(row_kernels.weight_gradients)
    monkeypatch.setattr(row_kernels, "weight_gradients", weights)
    for mine, theirs in zip(found, drawn(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert weights.count == 3  # before, between and after two attentions


def test_a_stack_that_would_keep_too_much_is_several_operators(monkeypatch, kernels):
    stack = stack_of()
    x = torch.randn(B, 7, D, dtype=WIDE, device=DEVICE)
    maps = [row_maps(layer.attention) for layer in stack.layers]
    kept = B * 7 * sum(one.pitch for one in stages(x, stack))
    monkeypatch.setattr(layers, "MOST_FACTORS", kept)
    assert layers._as_one(list(stack.layers), maps, x) is not None
    monkeypatch.setattr(layers, "MOST_FACTORS", kept - 1)
    assert layers._as_one(list(stack.layers), maps, x) is None


def stages(x, stack):
    """What one operator does between and around the attentions of a stack."""
    maps = [row_maps(layer.attention) for layer in stack.layers]
    options = layers._as_one(list(stack.layers), maps, x)
    return options.split(x, layers._all_weights(list(stack.layers), maps))[0]


def test_a_second_derivative_of_a_stack_is_that_of_its_modules(monkeypatch, kernels):
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    stack = stack_of()
    x = torch.randn(B, 5, D, dtype=WIDE, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad(stack(x).sin().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, stack.layers[0].feed_forward.rise.weight])

    found = second()
    monkeypatch.setattr(fast_path, "enabled", False)
    for mine, theirs in zip(found, second(), strict=True):
        torch.testing.assert_close(mine, theirs)


CALLS = {
    "short": ({}, 7, 2),
    "long": ({}, LONGEST + 3, 0),
    "dropout of weights": ({"attention_dropout": 0.5}, 7, 0),
    "window": ({"attention": "local(window=3)"}, 7, 0),
    "sigmoid": ({"attention": "multihead(normalize=sigmoid)"}, 7, 0),
    "sink": ({"attention": "multihead(sink=true)"}, 7, 0),
}


@pytest.mark.parametrize("case", CALLS)
def test_only_what_the_short_kernels_know_is_run_by_them(monkeypatch, kernels, case):
    if DEVICE == "cuda" and case == "long":
        pytest.skip("on a GPU the interpreter's word is enough")
    options, length, calls = CALLS[case]
    short = Counted(short_kernels.short_forward)
    monkeypatch.setattr(short_kernels, "short_forward", short)
    stack = stack_of(**{"attention": "multihead", **options})
    x = torch.randn(1, length, D, dtype=WIDE, device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert layers.refusal(stack.layers, x, None) == ""
        assert stack(x).shape == x.shape
    assert short.count == calls
    assert short_attention.LONGEST == LONGEST


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
