"""The fused kernels keep the promises of the core: the same cases, oracle and bounds as every other implementation.

On a GPU where there is one, else in Triton's interpreter, with blocks of 16 so that these small sizes have several.
"""

import pytest
import torch

import regard
from regard import biases, masks, scores
from regard.formula.call import Call
from regard.formula.request import build
from regard.implementations import reference
from regard.implementations.triton.dot.forward import forward
from regard.implementations.triton.launch.block_sizes import padded
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.kernel_work import KernelWork
from regard.nn.local_p import CenteredWindowMask
from tests.contracts.entries import BIASES, MASKS, Sizes
from tests.contracts.harness import Case, check, request
from tests.contracts.test_empty_rows import BELOW_FLOAT32
from tests.triton.conftest import DEVICE, GPU, LARGE_BLOCKS

SMALL = Sizes(b=3, h=2, g=1, q=19, k=35, d=5, v=7)
SQUARE = Sizes(b=3, h=2, g=1, q=35, k=35, d=5, v=7)
MANY = Sizes(b=3, h=2, g=2, q=37, k=19, d=17, v=3)
LARGE = Sizes(b=3, h=4, g=2, q=131, k=257, d=24, v=40)
EVEN = Sizes(b=3, h=4, g=2, q=131, k=257, d=40, v=37)  # both padded to 64

CASES = {f"mask {name}": Case(mask=name, sizes=SQUARE if MASKS[name].square else SMALL) for name in MASKS}
CASES |= {f"bias {name}": Case(bias=name, mask="causal", sizes=SMALL) for name in BIASES}
CASES |= {
    f"score {name}": Case(score=name, mask="lengths of both", sizes=SMALL)
    for name in ("dot", "softcap", "general per head", "cosine", "additive", "additive per head", "concat")
}
CASES |= {
    "sink": Case(sink=True, mask="window both", sizes=SMALL),
    "more queries than keys": Case(mask="causal", sink=True, sizes=MANY),
    "one query": Case(sizes=Sizes(b=3, h=2, g=1, q=1, k=37, d=5, v=7)),
    "one key": Case(sizes=Sizes(b=3, h=2, g=1, q=37, k=1, d=5, v=7)),
    "capped, by distance": Case(score="softcap", bias="relative", mask="nested", sizes=SMALL),
    "scaled": Case(scale=-0.7, bias="gaussian", mask="window and global", sizes=SMALL),
}
CASES |= {
    f"{dtype} {mask}": Case(mask=mask, dtype=dtype, sizes=SMALL)
    for dtype in (torch.bfloat16, torch.float16)
    for mask in ("none", "causal", "window and global")
}
ON_GPU = {f"large {name}": Case(mask=name, sizes=LARGE) for name in ("none", "causal offsets", "nested", "raw b h q k")}
ON_GPU |= {f"even {name}": Case(mask=name, sizes=EVEN, sink=True) for name in ("none", "nested", "raw b h q k")}
ON_GPU |= {
    f"{dtype} {width}": Case(
        mask="causal", bias=bias, score=score, dtype=dtype, sizes=Sizes(q=257, k=257, d=width, v=width)
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for width in (64, 128, 256)
    for bias, score in (("alibi", "scaled_dot"), ("relative", "softcap"))
}


@pytest.mark.parametrize("name", CASES if not GPU else {**CASES, **ON_GPU})
def test_outputs_and_gradients(name):
    case = {**CASES, **ON_GPU}[name]
    uneven = padded(case.sizes.d) != padded(case.sizes.v)
    if LARGE_BLOCKS and uneven and case.dtype == torch.float32:  # such backward kernels crashed on an H200
        with pytest.raises(regard.Unsupported, match="such different widths"):
            check(case, "triton", DEVICE)
        check(case, "triton", DEVICE, gradients=False)
        return
    check(case, "triton", DEVICE)


def spread(tensor):
    """The same numbers with a stride of 2 between them."""
    return torch.stack([tensor.detach(), torch.zeros_like(tensor)], -1)[..., 0].requires_grad_(tensor.requires_grad)


STRIDED = [("sink", True), ("mask", "documents across"), ("bias", "relative"), ("bias", "gaussian")]
if GPU:  # the interpreter takes seconds for each
    STRIDED += [("mask", "lengths of both"), ("mask", "prefix language model"), ("mask", "raw b h q k")]
    STRIDED += [("bias", "dense b h q k"), ("score", "additive per head")]


@pytest.mark.parametrize(("kind", "name"), STRIDED)
def test_tensors_of_any_stride_give_what_contiguous_ones_give(kind, name):
    """A sink of another stride than 1 was read from the wrong places, by every kernel."""
    (query, key, value), arguments, _ = request(Case(**{"sink": True, kind: name}, sizes=SMALL), DEVICE)
    part, found = arguments[kind], []
    tensors = tuple(map(spread, getattr(part, "tensors", ())))
    for chosen in (part, part.with_tensors(tensors) if tensors else spread(part)):
        given = {**arguments, kind: chosen}
        out = regard.attend(query, key, value, **given, impl="triton")
        learned = [x for x in (given["sink"], *getattr(chosen, "tensors", ())) if x.requires_grad]
        found.append([out, *torch.autograd.grad(out.sin().sum(), [query, key, value, *learned])])
        if kind == "sink":
            with torch.no_grad():
                found[-1].append(regard.attend(query[:, :, :1], key, value, sink=chosen, impl="triton"))
                found[-1].append(regard.weights(query, key, **given, rows=[2, 11]))
                found[-1].append(regard.summarize(query, key, **given).entropy)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def drawn(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape).to(DEVICE, dtype).requires_grad_(grad)


@pytest.mark.parametrize("name", BELOW_FLOAT32)
def test_finite_biases_that_add_up_to_less_than_the_lowest_number_empty_no_row(name):
    bias, rows = BELOW_FLOAT32[name][0](DEVICE), list(BELOW_FLOAT32[name][1])
    query, key, value = drawn(2, 3, 17, 5), drawn(2, 3, 19, 5), drawn(2, 3, 19, 7)
    out = regard.attend(query, key, value, bias=bias, impl="triton")
    mean = value.detach().mean(2, keepdim=True).expand_as(out)
    torch.testing.assert_close(out[:, :, rows], mean[:, :, rows])
    for grad in torch.autograd.grad(out.sin().sum(), [query, key, value]):
        assert grad.isfinite().all()


def test_dropout_is_that_of_the_reference_bit_for_bit():
    query, key, value, sink = drawn(2, 2, 21, 5), drawn(2, 1, 37, 5), drawn(2, 1, 37, 3), drawn(2)
    asked = build(Call(query, key, value, mask=masks.window(20), dropout=0.4, sink=sink, return_logsumexp=True))
    torch.manual_seed(5)
    mine = regard.attend(
        query, key, value, mask=masks.window(20), dropout=0.4, sink=sink, impl="triton", return_logsumexp=True
    )
    torch.manual_seed(5)
    seed = regard.formula.dropout.draw_seed(query.device)
    truth = reference.compute(asked, seed)
    upstream = [torch.randn_like(part) for part in truth]
    leaves = (query, key, value, sink)
    for left, right in zip(
        [*mine, *torch.autograd.grad(mine, leaves, upstream)],
        [*truth, *torch.autograd.grad(truth, leaves, upstream)],
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=2e-5, atol=2e-5)


HIDING = {
    "lengths": (lambda: masks.lengths(torch.tensor([11, 35, 3], device=DEVICE)), [11, 35, 3]),
    "lengths and causal": (
        lambda: masks.causal() & masks.lengths(torch.tensor([11, 35, 3], device=DEVICE)),
        [11, 35, 3],
    ),
    "documents and causal": (
        lambda: (
            masks.causal()
            & masks.documents(
                torch.tensor([[j // 4 if j < n else -1 for j in range(35)] for n in (11, 35, 3)], device=DEVICE)
            )
        ),
        [11, 35, 3],
    ),
    "prefix": (lambda: masks.prefix(9), [9, 9, 9]),
}


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_hidden_is_never_read(name, poison):
    make, ends = HIDING[name]
    query, key, value = drawn(3, 2, 35, 5), drawn(3, 1, 35, 5), drawn(3, 1, 35, 3)
    poisoned = [x.detach().clone().requires_grad_() for x in (query, key, value)]
    with torch.no_grad():
        for n, end in enumerate(ends):
            poisoned[1][n, :, end:], poisoned[2][n, :, end:] = poison, poison
    upstream = torch.randn(3, 2, 35, 3).to(DEVICE)
    results = []
    for tensors in ((query, key, value), poisoned):
        out = regard.attend(*tensors, mask=make(), impl="triton")
        results.append([out, *torch.autograd.grad(out, tensors, upstream)])
    for clean, dirty in zip(*results, strict=True):
        assert dirty.isfinite().all()
        torch.testing.assert_close(clean, dirty, rtol=0, atol=0)


def test_hidden_queries_reach_no_gradient():
    mask = masks.lengths(torch.tensor([35, 20], device=DEVICE), torch.tensor([19, 4], device=DEVICE))
    query, key, value = drawn(2, 2, 19, 5), drawn(2, 2, 35, 5), drawn(2, 2, 35, 3)
    with torch.no_grad():
        query[1, :, 4:] = float("nan")
    out = regard.attend(query, key, value, mask=mask, impl="triton")
    grads = torch.autograd.grad(out, (query, key, value), torch.randn_like(out))
    assert (out[1, :, 4:] == 0).all() and all(part.isfinite().all() for part in (out, *grads))
    assert (grads[0][1, :, 4:] == 0).all()


def test_nan_that_is_attended_shows_and_stays_in_its_rows():
    query, key, value = drawn(1, 1, 35, 5), drawn(1, 1, 35, 5), drawn(1, 1, 35, 3)
    with torch.no_grad():
        key[0, 0, 20] = float("nan")
    out = regard.attend(query, key, value, mask=masks.causal(), impl="triton")
    assert out[0, 0, 20:].isnan().all() and out[0, 0, :20].isfinite().all()


@pytest.mark.slow
def test_any_layout_of_inputs_and_gradients():
    query = drawn(35, 2, 5, 3).permute(3, 1, 0, 2)
    key, value = drawn(3, 1, 1, 5).expand(3, 1, 35, 5), drawn(3, 35, 4, 1).permute(0, 3, 1, 2)[..., ::2]
    leaves = [x.detach().requires_grad_() for x in (query, key, value)]
    upstream = torch.randn(2, 3, 2, 35).to(DEVICE).permute(1, 0, 3, 2).expand(3, 2, 35, 2)
    got = []
    for impl in ("triton", "reference"):
        out = regard.attend(*leaves, mask=masks.window(9), impl=impl)
        got.append([out, *torch.autograd.grad(out, leaves, upstream)])
    for mine, truth in zip(*got, strict=True):
        torch.testing.assert_close(mine, truth, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_equal_bits_every_time():
    query, key, value, table = drawn(2, 2, 35, 5), drawn(2, 1, 35, 5), drawn(2, 1, 35, 3), drawn(2, 9)
    first = None
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(50 if GPU else 2):
            out = regard.attend(query, key, value, mask=masks.causal(), bias=biases.relative(table), impl="triton")
            found = [out, *torch.autograd.grad(out, (query, key, value, table), torch.ones_like(out))]
            first = first or found
            assert all(torch.equal(left, right) for left, right in zip(first, found, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", [name for name in MASKS if name not in ("none", "full")])
@pytest.mark.parametrize("by_key", [False, True])
def test_lists_hold_each_block_that_is_not_empty_once(name, by_key):
    s = SQUARE if MASKS[name].square else SMALL
    rows = [torch.empty(s.b, s.h, n, 2, device=DEVICE) for n in (s.q, s.k, s.k)]
    mask = build(Call(*rows, mask=MASKS[name].build(s, DEVICE)[0])).mask
    prepared = prepare(mask, None, (s.b, s.h, s.q, s.k), torch.device(DEVICE))
    lists = prepared.lists(8, 4, by_key)
    if prepared.form[0] in ".bs":
        return  # a kernel finds these blocks by itself; the contracts above show that it finds the right ones
    dense = mask.dense(s.q, s.k, s.b, s.h)
    for n in range(s.b):
        for m in range(s.h):
            seen = dense[min(n, len(dense) - 1), min(m, dense.shape[1] - 1)]
            for line in range(-(-(s.k if by_key else s.q) // (4 if by_key else 8))):
                row = n * lists.strides[0] + m * lists.strides[1] + line
                partial, total = lists.counts[row].tolist()
                listed = lists.index[row, :total].tolist()
                assert len(set(listed)) == total
                for other in range(-(-(s.q if by_key else s.k) // (8 if by_key else 4))):
                    i, j = (other, line) if by_key else (line, other)
                    block = seen[8 * i : 8 * i + 8, 4 * j : 4 * j + 4]
                    assert not block.any() or other in listed
                    if other in listed[partial:]:
                        assert block.all() and block.shape[1] == 4


@pytest.mark.skipif(not GPU, reason="the interpreter compiles nothing")
def test_a_new_length_compiles_nothing():
    def kernels():
        return sum(len(cache[0]) for cache in forward.device_caches.values())

    counts = []
    for n in (137, 200, 256, 300, 513):
        rows = [drawn(2, 2, n, 64, dtype=torch.bfloat16, grad=False) for _ in range(3)]
        regard.attend(*rows, mask=masks.window(n // 3, 2), impl="triton")
        counts.append(kernels())
    assert counts[0] == counts[-1]


@pytest.mark.slow
def test_the_operators_pass_torchs_own_check():
    score = scores.softcap(3.0)
    query, key, value = drawn(1, 2, 19, 5), drawn(1, 1, 17, 5), drawn(1, 1, 17, 3)
    bias = biases.relative(drawn(2, 5))
    asked = build(Call(query, key, value, score, masks.causal(), bias, return_logsumexp=True))
    tensors, spec = regard.implementations.packing.pack(asked)
    arguments = (query, key, value, None, None, tensors, spec, asked.scale, 0.0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.regard.fused.default, arguments, test_utils=checks)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in (query, key, value)]
    out, lse = torch.ops.regard.fused.default(*plain, None, None, [bias.table.detach()], spec, asked.scale, 0.0)
    backward = (torch.ones_like(out), None, out, lse, *plain, None, None, [bias.table.detach()], spec, asked.scale, 0.0)
    torch.library.opcheck(
        torch.ops.regard.fused_backward.default, (*backward, [True, True, True, False, True]), test_utils=checks
    )


FEW = {
    "all": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.window(13, 0),
    "lengths": lambda: masks.lengths(torch.tensor([50, 7], device=DEVICE)),
    "padding": lambda: masks.padding(torch.arange(53, device=DEVICE).expand(2, 53) % 3 > 0),
    "causal and lengths": lambda: masks.causal() & masks.lengths(torch.tensor([53, 51], device=DEVICE)),
    "blocks, which the split kernel does not know": lambda: masks.blocks(8),
}


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_over_a_cache(name, queries):
    query, key, value, sink = (
        drawn(*shape, grad=False) for shape in ((2, 4, queries, 5), (2, 2, 53, 5), (2, 2, 53, 3), (4,))
    )
    got = [
        regard.attend(query, key, value, mask=FEW[name](), sink=sink, return_logsumexp=True, impl=impl)
        for impl in ("triton", "reference")
    ]
    for mine, truth in zip(*got, strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"normalize": "sparsemax", "sink": torch.zeros(1)}, "sink"),
        ({"score": scores.shaw(torch.zeros(3, 5))}, "no kernel for the shaw score"),
        ({"dropout": 1.0}, "nothing to compute"),
    ],
)
def test_refusals_say_why(change, why):
    change = {name: x.to(DEVICE) if hasattr(x, "to") else x for name, x in change.items()}
    with pytest.raises(regard.Unsupported, match=why):
        regard.attend(*[drawn(1, 1, 4, 5) for _ in range(3)], **change, impl="triton")


def test_a_launch_passes_exactly_the_arguments_of_the_kernel():
    work = KernelWork(
        *[drawn(1, 1, 4, 5, grad=False)] * 3,
        None,
        None,
        scores.dot(),
        prepare(None, None, (1, 1, 4, 4), torch.device(DEVICE)),
        1.0,
        0.0,
    )
    assert set(work.numbers()) | set(work.form()) <= set(forward.arg_names)


@pytest.mark.slow
def test_a_compiled_function_holds_one_operator_and_gives_the_same():
    mask = masks.window(4) & masks.lengths(torch.tensor([15], device=DEVICE))
    leaves = (drawn(1, 2, 19, 5), drawn(1, 2, 19, 5), drawn(1, 2, 19, 3), drawn(2, 9))

    def attended(query, key, value, table):
        return regard.attend(query, key, value, mask=mask, bias=biases.relative(table), impl="triton")

    got = []
    for call in (attended, torch.compile(attended, backend="aot_eager", fullgraph=True)):
        out = call(*leaves)
        got.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert all(torch.equal(plain, compiled) for plain, compiled in zip(*got, strict=True))


def test_local_p_predicts_a_window_for_each_head_and_query():
    center = (torch.rand(2, 2, 19) * 40 - 2).to(DEVICE).requires_grad_()
    leaves = (drawn(2, 2, 19, 5), drawn(2, 1, 35, 5), drawn(2, 1, 35, 3), center)
    mask = CenteredWindowMask(center.detach(), 4) & masks.lengths(torch.tensor([30, 20], device=DEVICE))
    got = []
    for impl in ("triton", "reference"):
        out = regard.attend(*leaves[:3], mask=mask, bias=biases.gaussian(center, 2.0), impl=impl)
        got.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for mine, truth in zip(*got, strict=True):
        torch.testing.assert_close(mine, truth, rtol=2e-5, atol=2e-5)
