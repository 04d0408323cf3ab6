"""Tensors without contents, of a FakeTensorMode or on `meta`: every request that runs gives the right shapes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import regard
from regard import biases, masks, scores

B, H, Q, K, D, V = 2, 3, 17, 19, 5, 7


def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype)


def whole(*shape):
    return empty(*shape, dtype=torch.int64)


def flags(*shape):
    return empty(*shape, dtype=torch.bool)


MASKS = {
    "none": lambda: None,
    "full": masks.full,
    "causal": masks.causal,
    "causal offsets": lambda: masks.causal(offset=whole(B)),
    "window": lambda: masks.window(3),
    "window offsets": lambda: masks.window(3, offset=whole(B)),
    "lengths": lambda: masks.lengths(whole(B)),
    "lengths of both": lambda: masks.lengths(whole(B), whole(B)),
    "padding": lambda: masks.padding(flags(B, K)),
    "padding of both": lambda: masks.padding(flags(B, K), flags(B, Q)),
    "documents": lambda: masks.documents(whole(B, Q), whole(B, K)),
    "packed": lambda: masks.packed(whole(4)),
    "prefix": lambda: masks.prefix(whole(B)),
    "blocks": lambda: masks.blocks(4),
    "dilated": lambda: masks.dilated(3),
    "global tokens": lambda: masks.global_tokens([0, 3]),
    "dense": lambda: masks.dense(flags(Q, K)),
    "raw": lambda: flags(B, 1, Q, K),
    "joined": lambda: masks.causal() & masks.lengths(whole(B)) | ~masks.prefix(2),
    "keys joined": lambda: masks.prefix(2) | masks.lengths(whole(B)),
}
OTHERS = {
    "additive": lambda: {"score": scores.additive(empty(D))},
    "general": lambda: {"score": scores.general(empty(D, D))},
    "shaw": lambda: {"score": scores.shaw(empty(5, D))},
    "alibi": lambda: {"bias": biases.alibi(H)},
    "relative": lambda: {"bias": biases.relative(empty(H, 5))},
    "t5": lambda: {"bias": biases.t5(empty(32, H))},
    "dense bias": lambda: {"bias": empty(Q, K)},
    "sink": lambda: {"sink": empty(H)},
    "dropout": lambda: {"dropout": 0.3},
    "entmax15": lambda: {"normalize": "entmax15"},
    "scale": lambda: {"scale": 2.0, "mask": masks.lengths(whole(B))},
}


@pytest.fixture(params=["fake", "meta"])
def hollow(request):
    """Every tensor made inside has no contents."""
    with FakeTensorMode() if request.param == "fake" else torch.device("meta"):
        yield request.param


def assert_runs(impl, **options):
    for needs_grad in (False, True):
        qkv = [torch.empty(B, H, n, d, requires_grad=needs_grad) for n, d in ((Q, D), (K, D), (K, V))]
        try:
            out = regard.attend(*qkv, **options, impl=impl)
        except regard.Unsupported:
            assert impl not in ("auto", "tiled", "reference")
            continue
        assert out.shape == (B, H, Q, V) and out.dtype == torch.float32
        assert isinstance(out, FakeTensor) or out.is_meta
        if needs_grad:
            found = torch.autograd.grad(out.sum(), qkv)
            assert [grad.shape for grad in found] == [one.shape for one in qkv]


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference", "sdpa", "flex", "triton"])
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_runs_without_contents(name, impl, hollow):
    assert_runs(impl, mask=MASKS[name]())


@pytest.mark.parametrize("impl", ["auto", "tiled", "reference", "sdpa"])
@pytest.mark.parametrize("name", OTHERS)
def test_scores_biases_and_numbers_run_without_contents(name, impl, hollow):
    assert_runs(impl, **OTHERS[name]())


@pytest.mark.parametrize("name", MASKS)
def test_weights_of_chosen_rows_run_without_contents(name, hollow):
    query, key = empty(B, H, Q, D), empty(B, H, K, D)
    assert regard.weights(query, key, mask=MASKS[name](), rows=[0, -2], heads=[1]).shape == (B, 1, 2, K)
    assert regard.weights(query, key, mask=MASKS[name](), rows=whole(3)).shape == (B, H, 3, K)
    with pytest.raises(regard.RegardError, match="rows: expected indices"):
        regard.weights(query, key, rows=[Q])


def test_a_summary_needs_contents(hollow):
    with pytest.raises(regard.Unsupported, match="no contents"):
        regard.summarize(empty(B, H, Q, D), empty(B, H, K, D))


@pytest.mark.parametrize("name", regard.nn.names())
def test_every_layer_runs_without_contents(name, hollow):
    layer = regard.nn.build(name, dim=6, **regard.nn.entry(name).needs)
    x = torch.empty(B, 5, 6, requires_grad=True)
    out = layer(x, mask=masks.lengths(whole(B)))
    assert out.shape == x.shape
    assert torch.autograd.grad(out.sum(), x)[0].shape == x.shape


def test_a_plan_made_with_contents_is_not_used_without_them():
    def call():
        x = torch.empty(B, H, K, D)
        return regard.explain(x, x, x, impl="auto").rejected["flex"]

    real = call()
    with FakeTensorMode():
        assert "no contents" in call() or "have none" in call()
    assert call() == real
