"""Promise 2: what is hidden is never read: NaN, inf or huge numbers there change nothing, forward or backward."""

import math
import warnings

import pytest
import torch

import regard
from regard import biases, masks
from tests import oracle
from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, SELF, Sizes, flags, numbers
from tests.contracts.harness import EVERYTHING, Case, collect, request

POISONS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "huge": 3e38}


def cache(s, device):
    """A preallocated cache: sample n has filled offset[n] + q keys."""
    filled = [3, 0, 5]
    return masks.causal(offset=numbers(filled, device)), lambda n, m, i, j: j <= i + filled[n]


def join(s, device):
    lengths = [s.k, s.k - 6, 2]
    mask = masks.window(3) & masks.lengths(numbers(lengths, device)) & masks.prefix(s.k - 1)
    return mask, lambda n, m, i, j: abs(j - (i + s.k - s.q)) <= 3 and j < lengths[n] and j < s.k - 1


def either(s, device):
    first, second = [4, 2, s.k], [0, 6, 3]
    mask = masks.lengths(numbers(first, device)) | masks.lengths(numbers(second, device))
    return mask, lambda n, m, i, j: j < max(first[n], second[n])


def negation(s, device):
    keep = [[(j + n) % 3 == 0 for j in range(s.k)] for n in range(s.b)]
    return ~masks.padding(flags(keep, device)), lambda n, m, i, j: not keep[n][j]


def one_group(wrap):
    """Key 4 is seen by no head of the first group, by one head of the second; key 9 by no head."""

    def build(s, device):
        def seen(n, m, i, j):
            return j != 9 and (j != 4 or m == s.h - 1)

        return wrap(oracle.visible(seen, s.b, s.h, s.q, s.k).to(device)), seen

    return build


def column(shape):
    """A raw bool tensor in which keys 0, 5 and the last are hidden from all."""

    def build(s, device):
        hidden = {0, 5, s.k - 1}
        keep = torch.tensor([j not in hidden for j in range(s.k)], device=device)
        return keep.expand(*(1 if x == 1 else getattr(s, x) for x in shape)), lambda n, m, i, j: j not in hidden

    return build


def from_entry(name):
    return lambda s, device: entries.MASKS[name].build(s, device)


# name: (build(sizes, device) -> mask, predicate; sizes)
HIDING = {
    "lengths": (from_entry("lengths"), SELF),
    "lengths of both": (from_entry("lengths of both"), FEW_QUERIES),
    "padding": (from_entry("padding"), MANY_QUERIES),
    "padding of both": (from_entry("padding of both"), SELF),
    "documents": (from_entry("documents"), SELF),
    "documents across": (from_entry("documents across"), FEW_QUERIES),
    "window with few queries": (from_entry("window before"), FEW_QUERIES),
    "not causal": (from_entry("not causal"), SELF),
    "cache": (cache, FEW_QUERIES),
    "and": (join, SELF),
    "or": (either, SELF),
    "not": (negation, SELF),
    "a user's runs": (from_entry("a user's runs by head and entry"), FEW_QUERIES),
    "a user's tensor": (from_entry("a user's tensor by head"), SELF),
    "raw grouped": (one_group(lambda seen: seen), SELF),
    "dense grouped": (one_group(masks.dense), Sizes(h=6, g=2)),
    "raw k": (column(("k",)), SELF),
    "raw q k": (column(("q", "k")), FEW_QUERIES),
    "raw b 1 1 k": (column(("b", 1, 1, "k")), MANY_QUERIES),
    "raw b h q k": (column(("b", "h", "q", "k")), Sizes(h=3, g=1)),
}
HIDES_QUERIES = {"lengths of both", "padding of both"}


def hidden_parts(name, device):
    """Mask, its dense truth, hidden keys (b,g,k), hidden queries (b,q)."""
    build, s = HIDING[name]
    mask, predicate = build(s, device)
    seen = oracle.visible(predicate, s.b, s.h, s.q, s.k)
    keys = ~seen.reshape(s.b, s.g, s.h // s.g, s.q, s.k).any(3).any(2)
    queries = ~seen.any(3).any(1) if name in HIDES_QUERIES else torch.zeros(s.b, s.q, dtype=torch.bool)
    assert keys.any(), "the case hides something"
    return mask, seen, keys, queries


def poisoned(found, keys, queries, poison):
    """Copies of q, k, v with the poison in everything hidden."""
    value = min(poison, torch.finfo(found["query"].dtype).max) if poison == 3e38 else poison
    new = {}
    for name, where in (("query", queries[:, None, :, None]), ("key", keys[..., None]), ("value", keys[..., None])):
        new[name] = found[name].detach().masked_fill(where.to(found[name].device), value).requires_grad_()
    return new


def results(case, mask, impl, device, change=None, with_lse=True):
    _qkv, arguments, found = request(case, device)
    if change:
        found.update(change(found))
    arguments["mask"] = mask
    inputs = (found["query"], found["key"], found["value"])
    answer = regard.attend(*inputs, **arguments, impl=impl, return_logsumexp=with_lse)
    out, lse = answer if with_lse else (answer, None)
    return collect(out, lse, found, True, with_lse)


def same(x, y, device):
    """Bit for bit; on a GPU, where sums are taken in any order, to a few roundings."""
    if device == "cpu":
        return torch.equal(x, y)
    return torch.allclose(x, y, rtol=0, atol=1e-5 * float(x.nan_to_num(0, 0, 0).abs().max().clamp(min=1)))


def assert_poison_changes_nothing(case, name, impl, device, poison, with_lse=True):
    mask, _, keys, queries = hidden_parts(name, device)
    clean = results(case, mask, impl, device, with_lse=with_lse)
    dirty = results(case, mask, impl, device, lambda found: poisoned(found, keys, queries, poison), with_lse=with_lse)
    for part, x in clean.items():
        assert x.isfinite().all() or part == "logsumexp", part
        assert same(x, dirty[part], device), f"{part} changed by {(x - dirty[part]).abs().max()}"
    assert (clean["gradient of key"].cpu()[keys] == 0).all()
    assert (clean["gradient of value"].cpu()[keys] == 0).all()


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("name", HIDING)
def test_every_mask_keeps_what_it_hides_unread(name, poison, impl, device):
    assert_poison_changes_nothing(Case(sizes=HIDING[name][1]), name, impl, device, POISONS[poison])


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("score", entries.SCORES)
def test_every_score_ignores_hidden_keys_and_queries(score, impl, device):
    for poison in (math.nan, 3e38):
        case = Case(score=score, sizes=HIDING["lengths of both"][1])
        assert_poison_changes_nothing(case, "lengths of both", impl, device, poison)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("normalize", {**entries.NORMALIZERS, **entries.CUSTOM_NORMALIZERS})
def test_every_normalizer_ignores_hidden_keys_and_queries(normalize, impl, device):
    for poison in (math.nan, math.inf):
        assert_poison_changes_nothing(Case(normalize=normalize, sink=True), "padding of both", impl, device, poison)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("bias", entries.BIASES)
def test_every_bias_leaves_hidden_keys_unread(bias, impl, device):
    assert_poison_changes_nothing(Case(bias=bias), "lengths", impl, device, math.nan)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_every_dtype_leaves_hidden_keys_unread(dtype, impl, device):
    for poison in (math.nan, 3e38):
        assert_poison_changes_nothing(Case(dtype=dtype), "padding of both", impl, device, poison)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("name", ["lengths", "padding"])
def test_sdpa_leaves_padding_unread(name, poison, device):
    case = Case(sizes=HIDING[name][1])
    assert_poison_changes_nothing(case, name, "sdpa", device, POISONS[poison], with_lse=False)


@pytest.mark.parametrize("name", HIDING)
def test_sdpa_leaves_hidden_keys_unread_or_refuses(name, device):
    try:
        case = Case(sizes=HIDING[name][1])
        assert_poison_changes_nothing(case, name, "sdpa", device, math.nan, with_lse=False)
    except regard.Unsupported as refusal:
        assert "sdpa" in str(refusal)
        assert name not in ("lengths", "padding") or device == "cuda"


@pytest.mark.parametrize("impl", EVERYTHING)
def test_a_dense_bias_is_not_read_at_hidden_keys(impl, device):
    mask, _, keys, _ = hidden_parts("lengths", device)
    case = Case(bias="dense b h q k")
    s = case.sizes

    def change(found):
        where = keys.repeat_interleave(s.h // s.g, 1)[:, :, None, :].to(device)
        return {"bias bias": found["bias bias"].detach().masked_fill(where, math.nan).requires_grad_()}

    qkv, arguments, found = request(case, device)
    arguments["mask"] = mask
    clean = collect(*regard.attend(*qkv, **arguments, impl=impl, return_logsumexp=True), found, True, True)
    found.update(change(found))
    arguments["bias"] = biases.dense(found["bias bias"])
    dirty = collect(*regard.attend(*qkv, **arguments, impl=impl, return_logsumexp=True), found, True, True)
    for part, x in clean.items():
        assert torch.equal(x, dirty[part]), part


@pytest.mark.parametrize("name", ["causal", "window both", "raw b h q k", "blocks", "nested", "documents across"])
@pytest.mark.parametrize("normalize", entries.NORMALIZERS)
def test_the_reference_reads_no_hidden_pair(name, normalize, device):
    """A NaN key changes only the rows that see it; other rows and their query gradients stay the same."""
    s = MANY_QUERIES
    case = Case(mask=name, normalize=normalize, sizes=s)
    mask, predicate = entries.MASKS[name].build(s, device)
    seen = oracle.visible(predicate, s.b, s.h, s.q, s.k)
    keys = torch.zeros(s.b, s.g, s.k, dtype=torch.bool)
    keys[:, :, s.k // 2] = True
    untouched = ~seen[..., s.k // 2]
    assert untouched.any()
    assert not untouched.all()
    no_query = torch.zeros(s.b, s.q, dtype=torch.bool)
    clean = results(case, mask, "reference", device)
    dirty = results(case, mask, "reference", device, lambda found: poisoned(found, keys, no_query, math.nan))
    for part in ("out", "logsumexp", "gradient of query"):
        assert torch.equal(clean[part].cpu()[untouched], dirty[part].cpu()[untouched]), part
    assert dirty["out"].cpu()[~untouched].isnan().all()


@pytest.mark.parametrize("normalize", entries.NORMALIZERS)
def test_the_reference_ignores_a_query_that_may_see_nothing(normalize, device):
    """An empty row of a pairwise mask: its NaN query reaches neither output nor gradients."""
    s = MANY_QUERIES
    queries = torch.zeros(s.b, s.q, dtype=torch.bool)
    queries[:, : s.q - s.k] = True
    keys = torch.zeros(s.b, s.g, s.k, dtype=torch.bool)
    case = Case(mask="causal", normalize=normalize, sizes=s)
    clean = results(case, masks.causal(), "reference", device)
    dirty = results(case, masks.causal(), "reference", device, lambda found: poisoned(found, keys, queries, math.nan))
    for part, x in clean.items():
        assert torch.equal(x, dirty[part]), part


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["raw k", "raw b 1 1 k", "raw b h q k", "lengths", "padding"])
def test_hidden_keys_are_found_without_waiting_for_the_device(name):
    mask, _, keys, queries = hidden_parts(name, "cuda")
    case = Case(sizes=HIDING[name][1])
    _, _, found = request(case, "cuda", gradients=False)
    dirty = poisoned(found, keys, queries, math.nan)
    try:
        with warnings.catch_warnings():  # torch calls the mode a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        out = regard.attend(dirty["query"], dirty["key"], dirty["value"], mask=mask, impl="reference")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert out.isfinite().all()


def test_a_bias_of_minus_infinity_does_not_hide(device):
    """Only `mask` hides: a NaN key under a −inf bias may show, and a mask beside it makes it unread."""
    query, key, value = (torch.randn(2, 3, 17, 5, device=device) for _ in range(3))
    bias = torch.zeros(17, device=device)
    bias[4] = -math.inf
    clean = regard.attend(query, key, value, bias=bias)
    key[:, :, 4] = math.nan
    value[:, :, 4] = math.nan
    assert regard.attend(query, key, value, bias=bias).isnan().all()
    torch.testing.assert_close(regard.attend(query, key, value, bias=bias, mask=bias == 0), clean)
