"""`flex`: right for every mask and bias, one compiled kernel for many lengths, never unfused, or a reason why not.

A kernel takes about ten seconds to compile, so these tests share few of them: a kernel depends on the form of a
request (which kinds of masks and biases are joined, heads, widths rounded up to 16, dtype), not on its numbers.
"""

import pytest
import torch
from torch._dynamo.utils import counters

import regard
from regard import biases, masks, scores
from regard.implementations import flex
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, MASKS, SELF, Sizes
from tests.contracts.harness import Case, check

SPANS = [
    "none",
    "full",
    "causal",
    "causal top-left",
    "causal offset",
    "causal offsets",
    "window both",
    "window before",
    "window itself",
    "window uneven top-left",
    "lengths",
    "lengths of both",
    "packed",
    "prefix",
    "blocks",
]
LONGER = Sizes(q=131, k=257)
SHORTER = Sizes(q=257, k=131)


def fitting(names, sizes):
    return [name for name in names if not MASKS[name].square or sizes.q == sizes.k]


def forward(**case):
    check(Case(**case), "flex", "cpu", gradients=False, with_lse=False)


def draw(b, q, k, h=4, g=2, d=16, dtype=torch.float32):
    shapes = [(b, h, q, d), (b, g, k, d), (b, g, k, d)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def compiled():
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SELF, FEW_QUERIES, MANY_QUERIES, LONGER, SHORTER], ids=str)
def test_masks_that_are_spans_of_keys(sizes):
    for name in fitting(SPANS, sizes):
        forward(mask=name, sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SELF, FEW_QUERIES, LONGER], ids=str)
def test_masks_of_a_user_whose_spans_differ_by_head_and_entry(sizes):
    for name in MASKS:
        if name.startswith("a user's"):
            forward(mask=name, sizes=sizes)


@pytest.mark.slow
def test_every_score_that_is_a_dot_product():
    for name in ("scaled_dot", "dot", "general", "general per head", "cosine", "cosine per head", "cosine per query"):
        forward(score=name, mask="causal")
    forward(mask="causal", scale=0.21)


def masks_of_ids(q, k, b):
    yield masks.dilated(3)
    yield masks.padding(torch.rand(b, k) > 0.3)
    yield masks.padding(torch.rand(b, k) > 0.3, torch.rand(b, q) > 0.3)
    yield masks.documents(torch.randint(-1, 4, (b, q)), torch.randint(-1, 4, (1, k)))
    yield masks.documents(torch.randint(-1, 4, (q,)), torch.randint(-1, 4, (b, k)))


@pytest.mark.slow
@pytest.mark.parametrize(("q", "k"), [(19, 19), (11, 17), (23, 17), (131, 257)])
def test_masks_that_compare_ids_dense_ones_and_joins(q, k):
    query, key, value = draw(3, q, k)
    lengths = masks.lengths(torch.randint(1, k + 1, (3,))) & masks.window(k // 2)
    shapes = ((3, 1, q, k), (q, k), (k,), (q, 1), (3, 1, 1, k))
    for ids, shape in zip(masks_of_ids(q, k, 3), shapes, strict=True):
        rest = masks.global_tokens([0, k - 2]) & masks.dense(torch.rand(shape) > 0.5)
        for mask in (lengths & ~ids | rest, masks.full() & ~ids | rest):
            found = regard.attend(query, key, value, mask=mask, impl="flex")
            torch.testing.assert_close(found, regard.attend(query, key, value, mask=mask, impl="reference"))


@pytest.mark.slow
@pytest.mark.parametrize(("q", "k"), [(19, 19), (11, 17), (23, 17), (131, 257)])
def test_every_bias_with_soft_capping(q, k):
    query, key, value = draw(3, q, k)
    of_distance = [
        biases.relative(torch.randn(4, 9)),
        biases.relative(torch.randn(1, 9)),
        biases.t5(torch.randn(12, 4), max_distance=14),
        biases.t5(torch.randn(12, 4), bidirectional=False),
    ]
    centers = [torch.randn(3, 4, q) * k, torch.randn(1, 1, 1)]
    dense = [torch.randn(shape) for shape in ((3, 4, q, k), (q, k), (4, 1, k), (k,), (q, 1))]
    dense.append(torch.randn(q, k).masked_fill(torch.rand(q, k) > 0.5, -torch.inf))
    for turn in range(6):
        bias = biases.alibi(4) + of_distance[turn % 4] + biases.gaussian(centers[turn % 2], 3.0 + turn)
        bias = bias + biases.dense(dense[turn])
        call = {"bias": bias, "score": scores.softcap(2.0 + turn), "mask": masks.causal(offset=turn + k // 2)}
        found, expected = [regard.attend(query, key, value, **call, impl=impl) for impl in ("flex", "reference")]
        torch.testing.assert_close(found, expected)


def test_a_row_of_the_lowest_number_is_not_empty_and_one_of_minus_infinity_is():
    query, key, value = draw(3, 19, 19)
    dense = torch.zeros(19, 19)
    dense[3], dense[5] = torch.finfo(torch.float32).min, -torch.inf
    bias = biases.alibi(4) + biases.relative(torch.zeros(1, 3)) + biases.gaussian(torch.zeros(1, 1, 1), 1e6)
    bias = bias + biases.dense(dense)
    found = regard.attend(query, key, value, bias=bias, score=scores.softcap(2.0), impl="flex")
    spread = value.mean(2, keepdim=True).repeat_interleave(2, 1)
    torch.testing.assert_close(found[:, :, 3:4], spread)
    assert not found[:, :, 5].any()
    dense[:4] = torch.finfo(torch.float32).min
    bias = biases.alibi(4) + biases.relative(torch.full((1, 3), torch.finfo(torch.float32).min))
    bias = bias + biases.gaussian(torch.full((1, 1, 1), 1e20), 2.0) + biases.dense(dense)  # the same kernel
    found = regard.attend(query, key, value, bias=bias, score=scores.softcap(2.0), impl="flex")
    torch.testing.assert_close(found[:, :, :4], spread.expand(-1, -1, 4, -1))
    assert not found[:, :, 5].any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_exact_as_the_formula(dtype):
    for sizes in (SELF, LONGER, Sizes(q=67, k=131, d=16, v=16)):
        for mask in ("none", "causal", "lengths of both"):
            forward(mask=mask, sizes=sizes, dtype=dtype)
    query, key, value = [100 * x for x in draw(3, 19, 19, dtype=dtype)]
    assert regard.attend(query, key, value, impl="flex").isfinite().all()


@pytest.mark.slow
def test_one_kernel_serves_many_lengths_batches_and_numbers():
    before = None
    for turn, n in enumerate([37, 41, 64, 97, 128, 131, 200, 257, 300, 385]):
        for q, k in ((n, n), (n, n + 30), (n + 30, n)):
            query, key, value = draw(2 + turn % 3, q, k)
            mask = masks.window(turn, 2 * turn) & masks.lengths(torch.full((2 + turn % 3,), n - turn))
            for call in ({}, {"mask": mask, "scale": 0.1 + turn / 50}, {"mask": masks.causal(offset=turn)}):
                found = regard.attend(query, key, value, **call, impl="flex")
                before = compiled() if before is None else before
                torch.testing.assert_close(found, regard.attend(query, key, value, **call, impl="reference"))
    assert compiled() == before


def test_one_query_of_one_sequence():
    for q, k in ((1, 40), (1, 300)):
        query, key, value = draw(1, q, k, h=2, g=1)
        for call in ({}, {"mask": masks.causal()}, {"mask": masks.lengths(torch.tensor([k - 1]))}):
            found = regard.attend(query, key, value, **call, impl="flex")
            torch.testing.assert_close(found, regard.attend(query, key, value, **call, impl="reference"))


@pytest.mark.slow
def test_inside_a_compiled_function_too():
    def function(query, key, value, mask, impl):
        return regard.attend(query, key, value, mask=mask & masks.causal(), impl=impl)

    torch._dynamo.reset()
    outer = torch.compile(function, fullgraph=True, dynamic=True)
    before = None
    for n in (37, 64, 131, 200, 257):
        arguments = [*draw(2, n, n + 9), masks.window(20) & masks.lengths(torch.tensor([n, 9]))]
        found = outer(*arguments, "flex")
        before = compiled() if before is None else before
        torch.testing.assert_close(found, function(*arguments, "reference"))
    assert compiled() == before


HIDDEN = {
    "lengths": masks.lengths(torch.tensor([11, 40]), torch.tensor([19, 30])),
    "window": masks.window(3, 0) & masks.lengths(torch.tensor([40, 40])),
    "prefix": masks.prefix(7),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_hidden_is_never_read(name, poison):
    mask = HIDDEN[name]
    query, key, value = draw(2, 30, 40)
    expected = regard.attend(query, key, value, mask=mask, impl="reference")
    seen = mask.dense(30, 40, batch=2)
    key[~seen.any(2).expand(2, 2, 40)] = poison
    value[~seen.any(2).expand(2, 2, 40)] = poison
    if name == "lengths":
        query[0, :, 19:] = poison
    torch.testing.assert_close(regard.attend(query, key, value, mask=mask, impl="flex"), expected)


@pytest.mark.parametrize("k", [3, 15, 16, 17, 32, 128, 130, 144, 256, 300])
@pytest.mark.parametrize("where", ["query", "key", "last key", "value", "infinite key"])
def test_what_is_not_finite_stays_visible(k, where):
    query, key, value = draw(2, k, k)
    if where == "query":
        query[0, 0, k // 2] = torch.nan
    elif where == "value":
        value[1, 1, k // 2, 3] = torch.nan
    else:
        row = k - 1 if where == "last key" else k // 2
        key[0, :, row, 5] = torch.inf if where == "infinite key" else torch.nan
    for mask in (None, masks.causal()):
        lost = ~regard.attend(query, key, value, mask=mask, impl="reference").isfinite()
        found = regard.attend(query, key, value, mask=mask, impl="flex")
        assert not found[lost].isfinite().any()
        if where != "value":  # a NaN value may also reach rows of its block that do not see it
            assert found[~lost].isfinite().all()


def test_layouts_and_three_axes():
    query, key, value = draw(2, 30, 40)
    expected = regard.attend(query, key, value, impl="reference")
    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.stack([x, x], -1)[..., 0],
        lambda x: torch.cat([x, x], -1)[..., :16],
        lambda x: torch.cat([x, x], 2)[:, :, : x.shape[2]],
    ):
        given = [change(x) for x in (query, key, value)]
        copies = [x.clone() for x in given]
        torch.testing.assert_close(regard.attend(*given, impl="flex"), expected)
        assert all(torch.equal(x, y) for x, y in zip(given, copies, strict=True))
    wide = [x[:, :1].expand(-1, n, -1, -1) for x, n in ((query, 4), (key, 2), (value, 2))]
    torch.testing.assert_close(regard.attend(*wide, impl="flex"), regard.attend(*wide, impl="reference"))


@pytest.mark.slow
def test_under_autocast():
    query, key, value = draw(2, 30, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = regard.attend(query, key, value, mask=masks.causal(), impl="flex")
    assert found.dtype == torch.bfloat16
    expected = regard.attend(query, key, value, mask=masks.causal(), impl="reference")
    torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_one_kernel_serves_many_lengths_also_after_a_reset_and_in_inference_mode():
    query, key, value = draw(2, 40, 40)
    torch._dynamo.reset()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for n in (40, 30, 20):
                before = compiled()
                regard.attend(query[:, :, :n], key[:, :, :n], value[:, :, :n], impl="flex")
                assert n == 40 or compiled() == before


def own_mask():
    class Own(masks.Mask):
        def visible(self, grid):
            return grid.column >= 0

    return Own()


REFUSED = {
    "additive": lambda q: {"score": scores.additive(torch.randn(16))},
    "entmax15": lambda q: {"normalize": "entmax15"},
    "sink": lambda q: {"sink": torch.randn(4)},
    "dropout": lambda q: {"dropout": 0.1},
    "log-sum-exp": lambda q: {"return_logsumexp": True},
    "user-defined class": lambda q: {"mask": masks.causal() & ~own_mask()},
    "Own is a user-defined class": lambda q: {"mask": masks.window(3) | own_mask()},
    "bias that needs gradient": lambda q: {"bias": biases.relative(torch.randn(4, 9, requires_grad=True))},
}


@pytest.mark.parametrize("why", REFUSED)
def test_refusals_say_why(why):
    query, key, value = draw(2, 30, 40)
    with pytest.raises(regard.Unsupported, match=why):
        regard.attend(query, key, value, **REFUSED[why](query), impl="flex")


def test_refusals_of_what_torch_lacks_on_the_cpu(monkeypatch):
    query, key, value = draw(2, 30, 40)
    with pytest.raises(regard.Unsupported, match="float32, bfloat16 and float16"):
        regard.attend(query.double(), key.double(), value.double(), impl="flex")
    with pytest.raises(regard.Unsupported, match="backward pass on the CPU"):
        regard.attend(query.requires_grad_(), key, value, impl="flex")
    query = query.detach()
    for empty in ((query[:, :, :0], key, value), (query, key[:, :, :0], value[:, :, :0])):
        with pytest.raises(regard.Unsupported, match="flex"):
            regard.attend(*empty, impl="flex")
    monkeypatch.setattr(flex, "has_compiler", lambda: False)
    with pytest.raises(regard.Unsupported, match="compiler"):
        regard.attend(query, key, value[..., :3], impl="flex")


def test_it_raises_when_torch_gives_up_on_compiling():
    query, key, value = draw(2, 30, 40)
    regard.attend(query, key, value, impl="flex")
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float16)  # torch would compile anew for it
        with (
            torch._dynamo.config.patch(recompile_limit=1),
            pytest.raises(regard.Unsupported, match="too many variants"),
        ):
            regard.attend(query, key, value, impl="flex")
    finally:
        torch.set_default_dtype(before)
    assert regard.attend(query, key, value, impl="flex").isfinite().all()


def test_it_raises_when_torch_cannot_compile(monkeypatch):
    def broken(*arguments):
        raise torch._dynamo.exc.InternalTorchDynamoError("no")

    monkeypatch.setattr("regard.implementations.flex.call.kernel_for", lambda *form: broken)
    with pytest.raises(regard.Unsupported, match="could not compile"):
        regard.attend(*draw(2, 30, 40), impl="flex")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_infinite_query_or_key_leaves_no_row_of_zeros(dtype):
    for place in ("query", "key", "query over keys of one sign"):
        query, key, value = draw(2, 19, 21, dtype=dtype)
        if place == "key":
            key[1, 1, 4, 3] = torch.inf
        else:
            key = -key.abs() if place != "query" else key
            query[1, 1, 2, 3] = torch.inf
        found, true = (
            regard.attend(query, key, value, mask=masks.causal(), impl=impl).isfinite()
            for impl in ("flex", "reference")
        )
        assert not true.all()
        assert torch.equal(found, true), place


def test_float16_rows_that_leave_their_range_are_computed_in_float32():
    query, key, value = draw(2, 19, 21, dtype=torch.float16)
    weight = (torch.eye(16) * 3e4).half()
    exact = {"general": scores.general(weight.double()), "cosine": scores.cosine(1e6)}
    for name, score in (("general", scores.general(weight)), ("cosine", scores.cosine(1e6))):
        out = regard.attend(query, key, value, score=score, mask=masks.causal(), impl="flex")
        assert out.dtype == torch.float16
        rows = [x.double() for x in (query, key, value)]
        true = regard.attend(*rows, score=exact[name], mask=masks.causal(), impl="reference")
        torch.testing.assert_close(out.double(), true, rtol=2e-3, atol=2e-3)
