"""Promise 6: padding a batch, splitting it, or decoding step by step does not change a result beyond rounding."""

import itertools

import pytest
import torch

import regard
from regard import biases, masks
from tests.contracts import entries
from tests.contracts.entries import Sizes
from tests.contracts.harness import EVERYTHING, Case, request

EXACTLY = {"rtol": 1e-5, "atol": 1e-5}
LENGTHS = [23, 7, 16]
PAIRS = [
    ("scaled_dot", "softmax", "none"),
    ("additive per head", "sparsemax", "none"),
    ("concat", "entmax15", "relative"),
    ("general per head", "sigmoid", "alibi"),
    ("softcap", "hard", "none"),
    ("cosine per head", "softmax", "raw h 1 k"),
    ("shaw", "softmax", "none"),
    ("transformer_xl per head", "entmax15", "t5"),
]
# a bias indexed by key cannot follow keys that move to the right
SIDES = [(names, side) for names in PAIRS for side in ("right", "left") if (side, names[2]) != ("left", "raw h 1 k")]


def arguments_of(score, normalize, bias, sizes, device):
    case = Case(score=score, normalize=normalize, bias=bias, sizes=sizes)
    qkv, arguments, _ = request(case, device, gradients=False)
    del arguments["mask"], arguments["bias"]
    _, _, found = request(case, device, gradients=False)
    parts = {name.removeprefix("bias "): x for name, x in found.items() if name.startswith("bias ")}
    return qkv, arguments, lambda s: entries.BIASES[bias].build(parts, s)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize(("names", "side"), SIDES, ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_a_padded_batch_equals_its_samples(names, side, impl, device):
    """Lengths of queries and keys both differ; the padding is NaN."""
    sizes = Sizes(b=3, h=4, g=2, q=max(LENGTHS), k=max(LENGTHS))
    qkv, arguments, bias = arguments_of(*names, sizes, device)
    keep = torch.zeros(3, sizes.k, dtype=torch.bool, device=device)
    for n, length in enumerate(LENGTHS):
        keep[n, slice(0, length) if side == "right" else slice(sizes.k - length, sizes.k)] = True
    padded = [x.masked_fill(~keep[:, None, :, None], float("nan")) for x in qkv]
    mask = masks.causal() & masks.padding(keep, keep)
    found = regard.attend(*padded, **arguments, bias=bias(sizes), mask=mask, impl=impl)
    for n, length in enumerate(LENGTHS):
        alone = Sizes(b=1, h=4, g=2, q=length, k=length)
        one = [x[n : n + 1, :, keep[n]] for x in qkv]
        one_bias = bias(sizes)[:, :, :length] if names[2] == "raw h 1 k" else bias(alone)
        expected = regard.attend(*one, **arguments, bias=one_bias, mask=masks.causal(), impl=impl)
        torch.testing.assert_close(found[n : n + 1, :, keep[n]], expected, **EXACTLY)
        assert (found[n, :, ~keep[n]] == 0).all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("names", PAIRS, ids=" ".join)
def test_steps_with_a_growing_cache_equal_one_causal_call(names, impl, device):
    length = 19
    sizes = Sizes(b=2, h=4, g=2, q=length, k=length)
    (query, key, value), arguments, bias = arguments_of(*names, sizes, device)
    whole = regard.attend(query, key, value, **arguments, bias=bias(sizes), mask=masks.causal(), impl=impl)
    for t in range(1, length + 1):
        step = Sizes(b=2, h=4, g=2, q=1, k=t)
        step_bias = bias(sizes)[:, :, :t] if names[2] == "raw h 1 k" else bias(step)
        found = regard.attend(
            query[:, :, t - 1 : t],
            key[:, :, :t],
            value[:, :, :t],
            **arguments,
            bias=step_bias,
            mask=masks.causal(),
            impl=impl,
        )
        torch.testing.assert_close(found, whole[:, :, t - 1 : t], **EXACTLY)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_a_split_batch_equals_the_batch_with_gradients(impl, device):
    shape = (7, 3, 19, 5)
    qkv = [torch.randn(shape, device=device, requires_grad=True) for _ in range(3)]
    keys = torch.tensor([19, 3, 8, 17, 1, 12, 5], device=device)
    whole = regard.attend(*qkv, mask=masks.lengths(keys), impl=impl)
    pull = torch.randn_like(whole)
    grads = torch.autograd.grad(whole, qkv, pull)
    for part in (slice(0, 1), slice(1, 4), slice(4, 7)):
        some = [x.detach()[part].requires_grad_() for x in qkv]
        out = regard.attend(*some, mask=masks.lengths(keys[part]), impl=impl)
        torch.testing.assert_close(out, whole[part], **EXACTLY)
        for grad, expected in zip(torch.autograd.grad(out, some, pull[part]), grads, strict=True):
            torch.testing.assert_close(grad, expected[part], **EXACTLY)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", ["softmax", "entmax15"])
def test_packed_documents_equal_the_documents_alone(normalize, impl, device):
    ends = [0, 5, 6, 20, 31]
    query, key, value = (torch.randn(1, 3, 31, 5, device=device) for _ in range(3))
    mask = masks.packed(torch.tensor(ends, device=device)) & masks.causal()
    arguments = {"bias": biases.alibi(3), "normalize": normalize, "impl": impl}
    found = regard.attend(query, key, value, mask=mask, **arguments)
    for a, b in itertools.pairwise(ends):
        one = [x[:, :, a:b] for x in (query, key, value)]
        torch.testing.assert_close(found[:, :, a:b], regard.attend(*one, mask=masks.causal(), **arguments), **EXACTLY)


@pytest.mark.parametrize("impl", EVERYTHING)
def test_columns_padded_in_every_sample_keep_the_length(impl, device):
    query, key, value = (torch.randn(2, 3, 17, 5, device=device) for _ in range(3))
    lengths = torch.tensor([9, 6], device=device)
    out = regard.attend(query, key, value, mask=masks.lengths(lengths, lengths), impl=impl)
    assert out.shape == (2, 3, 17, 5)
    short = regard.attend(*(x[:, :, :9] for x in (query, key, value)), mask=masks.lengths(lengths, lengths), impl=impl)
    torch.testing.assert_close(out[:, :, :9], short, **EXACTLY)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_the_same_call_gives_the_same_bits(impl, device):
    qkv = [torch.randn(2, 3, 47, 8, device=device, requires_grad=True) for _ in range(3)]
    first = None
    for _ in range(50):
        out = regard.attend(*qkv, mask=masks.causal(), impl=impl)
        found = [out]
        if device == "cpu" or impl in ("reference", "tiled"):  # torch's own CUDA kernels add in any order
            found += torch.autograd.grad(out.sum(), qkv)
        first = first or found
        assert all(torch.equal(x, y) for x, y in zip(found, first, strict=True))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e18, 45.0, 0.0])
@pytest.mark.parametrize("score", [name for name in entries.SCORES if "per query" not in name])
def test_what_one_batch_entry_holds_changes_no_bit_of_another(score, number):
    """On a CPU, where methods are chosen by magnitudes: by those of each entry."""
    (query, key, value), arguments, _ = request(Case(score=score, sizes=Sizes(b=3)), "cpu", gradients=False)
    arguments["mask"], found = masks.window(4), []
    for changed in (False, True):
        rows = [part.clone().requires_grad_() for part in (query, key, value)]
        if changed:
            with torch.no_grad():
                for part in rows:
                    part[1, 0, 3] = number
        out = regard.attend(*rows, **arguments)
        found.append([out, *torch.autograd.grad(out[[0, 2]].sin().sum(), rows)])
    for before, after in zip(*found, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
