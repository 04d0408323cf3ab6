"""`local-m` and `local-p` against hand-computed numbers and loops over the equations of Luong et al. 2015."""

import math

import pytest
import torch

import regard
from regard import masks
from regard.masks.algebra import EMPTY, FULL
from regard.nn import build
from regard.nn.local_p import CenteredWindowMask, visible_counts

B, Q, K, DIM, SCORES = 2, 5, 7, 6, ["dot", "general", "concat"]


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def made(name, **options):
    """A layer in float64 whose centres spread over the source."""
    layer = build(name, dim=DIM, **options).double()
    with torch.no_grad():
        for key, parameter in layer.named_parameters():
            parameter.copy_(rows(*parameter.shape, seed=len(key)) * (2 if key.startswith("center") else 0.7))
    return layer


def score(layer, kind, head, query, key):
    compare = layer.compare
    if kind == "dot":
        return float(query @ key)
    if kind == "general":
        return float(query @ compare.weight[head] @ key)
    return float(compare.vector[head] @ torch.tanh(compare.weight[head] @ torch.cat([query, key])))


@torch.no_grad()
def by_loops(layer, kind, query, source, visible, center, reach, sigma, renormalize=False):
    """Outputs and weights, key by key. `visible` (b,h,q,k); `center(b,h,i,count)` is the centre of a query."""
    width, keys = layer.head_dim, source.shape[1]
    out = torch.zeros_like(query)
    weights = torch.zeros(len(query), layer.num_heads, query.shape[1], keys).double()
    for b in range(len(query)):
        for h in range(layer.num_heads):
            part = slice(h * width, (h + 1) * width)
            for i in range(query.shape[1]):
                seen = [j for j in range(keys) if visible[b, h, i, j]]
                p = center(b, h, i, len(seen))
                near = [j for j in seen if abs(j - p) <= reach]
                raw = {j: math.exp(score(layer, kind, h, query[b, i, part], source[b, j, part])) for j in near}
                total = sum(raw.values())
                factor = {j: 1.0 if sigma is None else math.exp(-((j - p) ** 2) / (2 * sigma**2)) for j in near}
                row = {j: raw[j] / total * factor[j] for j in near}
                scale = sum(row.values()) if renormalize else 1.0
                for j in near:
                    weights[b, h, i, j] = row[j] / scale
                    out[b, i, part] += row[j] / scale * source[b, j, part]
    return out, weights


def predicted(layer, query):
    """Equation 9 for one query at a time."""

    def center(b, h, i, count):
        part = query[b, i, h * layer.head_dim : (h + 1) * layer.head_dim]
        hidden = torch.tanh(layer.center_weight[h] @ part)
        return count / (1 + math.exp(-float(layer.center_vector[h] @ hidden)))

    return center


def everything(heads, q=Q, k=K):
    return torch.ones(B, heads, q, k, dtype=torch.bool)


def one_dimensional(window, weight=1.0, vector=0.0, **options):
    """A layer of width 1 with dot scores: p = S·sigmoid(vector·tanh(weight·q))."""
    layer = build("local-p", dim=1, window=window, score="dot", **options).double()
    with torch.no_grad():
        layer.center_weight.fill_(weight)
        layer.center_vector.fill_(vector)
    return layer


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[None, :, None]


def test_equation_10_by_hand_with_the_centre_on_a_key():
    # S = 7, one key hidden at the end → S = 6, p = 6·sigmoid(0) = 3. D = 2 (window 5), σ = 1: keys 1 … 5 are near.
    # q = 0 makes all scores equal: softmax 1/5. The Gaussian is e^−2, e^−½, 1, e^−½, e^−2.
    layer = one_dimensional(window=5)
    source = column(5, 4, 3, 2, 1, 6, 9)
    mask = masks.lengths(torch.tensor([6]))
    gauss = [0, math.exp(-2), math.exp(-0.5), 1, math.exp(-0.5), math.exp(-2), 0]
    expected = torch.tensor([g / 5 for g in gauss], dtype=torch.float64)
    close(layer.weights(column(0), source, mask=mask)[0, 0, 0], expected)
    # Σ a h = (4e^−2 + 3e^−½ + 2 + 1e^−½ + 6e^−2) / 5 = (2 + 4·0.60653066 + 10·0.13533528) / 5 = 1.15589509
    close(layer(column(0), source, mask=mask), column(1.1558950941), atol=1e-9)


def test_equation_10_by_hand_between_two_keys():
    # S = 5, p = 2.5, D = 2, σ = 1: keys 1, 2, 3, 4. q = ln 2 and h_j = j: exp(score) = 2, 4, 8, 16, together 30.
    # Distances 1.5, ½, ½, 1.5: the Gaussian is e^−1.125, e^−0.125, e^−0.125, e^−1.125.
    layer, query, source = one_dimensional(window=5), column(math.log(2)), column(0, 1, 2, 3, 4)
    far, near = math.exp(-1.125), math.exp(-0.125)
    expected = torch.tensor([0, 2 * far, 4 * near, 8 * near, 16 * far], dtype=torch.float64) / 30
    close(layer.weights(query, source)[0, 0, 0], expected)
    normal = one_dimensional(window=5, renormalize=True)
    close(normal.weights(query, source)[0, 0, 0], expected / expected.sum())


def test_the_centre_learns_by_the_slope_of_the_gaussian():
    # As above, o = Σ a_j j and da_j/dp = a_j (j − p)/σ². With w = 1: p = 5·sigmoid(v·tanh(q)), dp/dv at v = 0 is
    # 5/4·tanh(q).
    layer, query, source = one_dimensional(window=5), column(math.log(2)), column(0, 1, 2, 3, 4)
    layer(query, source).sum().backward()
    weights = layer.weights(query, source)[0, 0, 0].detach()
    slope = sum(float(weights[j]) * (j - 2.5) * j for j in range(5))
    expected = torch.tensor([[slope * 5 / 4 * math.tanh(math.log(2))]], dtype=torch.float64)
    close(layer.center_vector.grad, expected)


@pytest.mark.parametrize(
    ("window", "vector", "keys", "expected"),
    [
        # p = 0 exactly; D = 1, σ = ½: key 0 with factor 1, key 1 with e^−2, softmax ½ each.
        (3, -1e4, 4, [0.5, 0.5 * math.exp(-2), 0, 0]),
        # p = S = 4, where no key is; key 3 alone is near, at distance 1.
        (3, 1e4, 4, [0, 0, 0, math.exp(-2)]),
        # S = 1: p = ½, key 0 at distance ½: e^(−¼ / ½).
        (3, 0.0, 1, [math.exp(-0.5)]),
        # A window over both ends: D = 10, σ = 5, S = 4, p = 2.
        (21, 0.0, 4, [math.exp(-4 / 50) / 4, math.exp(-1 / 50) / 4, 0.25, math.exp(-1 / 50) / 4]),
        # D = 0: the key exactly at p = 2, without a Gaussian.
        (1, 0.0, 4, [0, 0, 1, 0]),
        # D = 0 and p = 1½: nothing is near.
        (1, 0.0, 3, [0, 0, 0]),
        # S = 0.
        (3, 0.0, 0, []),
    ],
)
def test_the_edges_of_the_window(window, vector, keys, expected):
    layer = one_dimensional(window, vector=vector)
    query = torch.full((1, 1, 1), 1e-3 if vector == 0 else 1.0, dtype=torch.float64, requires_grad=True)
    source = torch.zeros(1, keys, 1, dtype=torch.float64, requires_grad=True)  # equal scores
    weights = layer.weights(query, source)[0, 0, 0]
    close(weights, torch.tensor(expected, dtype=torch.float64))
    out = layer(query, source)
    assert out.shape == (1, 1, 1)
    grads = torch.autograd.grad(out.sum(), [query, source, *layer.parameters()], allow_unused=True)
    assert all(grad is None or grad.isfinite().all() for grad in grads)


HOLES = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [1] * 7]).bool()
MASKS = {
    "none": None,
    "padding": masks.padding(HOLES),
    "nothing": masks.lengths(torch.tensor([0, 4])),
    "pairs": torch.rand(B, 2, Q, K, generator=torch.Generator().manual_seed(2)) > 0.4,
    "causal": masks.causal(),
    "causal padding": masks.causal(align="top-left") & masks.padding(HOLES),
}


def as_dense(mask, heads=2, q=Q, k=K):
    if mask is None:
        return everything(heads, q, k)
    return (mask if isinstance(mask, torch.Tensor) else mask.dense(q, k, B, heads)).expand(B, heads, q, k)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("window", [1, 3, 5, 9])
def test_local_p_equals_loops_over_the_paper(mask, window, renormalize):
    layer = made("local-p", num_heads=2, window=window, renormalize=renormalize)
    query, source = rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    reach = window // 2
    out, weights = by_loops(
        layer,
        "general",
        query,
        source,
        as_dense(MASKS[mask]),
        predicted(layer, query),
        reach,
        reach / 2 or None,
        renormalize=renormalize,
    )
    close(layer(query, source, mask=MASKS[mask]), out)
    found = layer.weights(query, source, mask=MASKS[mask])
    close(found, weights)
    for chosen in ([3, 0], slice(1, 4), slice(None, None, -2), torch.tensor([-1, 2]), range(2)):
        part = layer.weights(query, source, mask=MASKS[mask], rows=chosen, heads=[1])
        index = torch.as_tensor(list(range(Q))[chosen] if isinstance(chosen, slice) else list(chosen))
        close(part, found[:, [1]][:, :, index])


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("name", ["local-p", "local-m"])
def test_every_score_carries_its_own_parameters(name, kind):
    layer, source_dim = made(name, window=3, score=kind, source_dim=8), 8
    query, source = rows(B, Q, DIM), rows(B, K, source_dim, seed=1)
    mapped = source @ layer.source_map.weight.T
    center = predicted(layer, query) if name == "local-p" else lambda b, h, i, count: i
    sigma = 0.5 if name == "local-p" else None
    out, _ = by_loops(layer, kind, query, mapped, everything(1), center, 1, sigma)
    close(layer(query, source), out)
    counts = {"dot": 0, "general": 36, "concat": 72 + 6}
    centre = 36 + 6 if name == "local-p" else 0
    assert sum(p.numel() for p in layer.parameters()) == counts[kind] + 48 + centre


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "pairs"])
@pytest.mark.parametrize("window", [1, 5])
def test_the_window_of_local_m_advances_with_the_query_from_the_top_left(mask, gaussian, window):
    layer = made("local-m", num_heads=2, window=window, gaussian=gaussian)
    query, source = rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    reach, sigma = window // 2, window // 2 / 2 or None
    out, weights = by_loops(
        layer,
        "general",
        query,
        source,
        as_dense(MASKS[mask]),
        lambda b, h, i, count: i,
        reach,
        sigma if gaussian else None,
    )
    close(layer(query, source, mask=MASKS[mask]), out)
    close(layer.weights(query, source, mask=MASKS[mask]), weights)
    # Queries beyond the end of a short source see nothing.
    late = layer(rows(B, 11, DIM), source[:, :2])
    assert (late[:, 2 + reach :] == 0).all() and (late[:, : 2 + reach] != 0).all()


def test_causal_local_m_sees_as_many_keys_as_its_window_says():
    layer, query = made("local-m", window=4, causal=True), rows(B, K, DIM)
    seen = layer.weights(query)[0, 0] > 0
    assert seen.tolist() == [[0 <= i - j < 4 for j in range(K)] for i in range(K)]


def test_causal_local_p_counts_the_keys_that_came_before():
    layer, query = made("local-p", window=5, causal=True), rows(B, K, DIM)
    past = torch.ones(K, K, dtype=torch.bool).tril().expand(B, 1, K, K)
    out, weights = by_loops(layer, "general", query, query, past, predicted(layer, query), 2, 1.0)
    close(layer(query), out)
    close(layer.weights(query), weights)


BOTH = [("local-p", {}), ("local-m", {}), ("local-m", {"gaussian": True})]


LONG, SHORT = 701, 601  # too long for a single strip, so that the grades of blocks decide what is read
PADDED = masks.padding(torch.rand(1, LONG, generator=torch.Generator().manual_seed(4)) > 0.2)
LONG_MASKS = [None, PADDED, masks.causal() & PADDED & masks.causal(offset=60), masks.window(150)]


@pytest.mark.parametrize(("name", "options"), BOTH)
@pytest.mark.parametrize("mask", LONG_MASKS, ids=["none", "padding", "causal", "pairs"])
def test_strips_of_a_long_source_give_the_same_numbers(name, options, mask):
    layer = made(name, num_heads=2, window=31, **options)
    query, source = rows(1, SHORT, DIM), rows(1, LONG, DIM, seed=1)
    leaves = [query.requires_grad_(), source.requires_grad_(), *layer.parameters()]
    out, weights = layer(query, source, mask=mask), layer.weights(query, source, mask=mask)
    plain = (weights @ source.view(1, LONG, 2, -1).transpose(1, 2)).transpose(1, 2).flatten(2)
    close(out, plain)
    upstream = rows(*out.shape, seed=5)
    found, expected = torch.autograd.grad(out, leaves, upstream), torch.autograd.grad(plain, leaves, upstream)
    for mine, theirs in zip(found, expected, strict=True):
        close(mine, theirs, atol=1e-10)


@pytest.mark.parametrize("reach", [0, 3, 40])
def test_blocks_are_graded_soundly(reach):
    center = torch.rand(B, 3, 37, generator=torch.Generator().manual_seed(1)) * 53
    mask = CenteredWindowMask(center, reach)
    dense = mask.dense(37, 53, B, 3)
    assert torch.equal(dense, (torch.arange(53) - center[..., None]).abs() <= reach)
    grades = mask.classify(37, 53, 4, 5, B, 3)
    for i in range(grades.shape[2]):
        for j in range(grades.shape[3]):
            block = dense[:, :, 4 * i : 4 * i + 4, 5 * j : 5 * j + 5].flatten(2)
            assert not block.any(-1)[grades[:, :, i, j] == EMPTY].any()
            assert block.all(-1)[grades[:, :, i, j] == FULL].all()
    assert (grades == EMPTY).any() or reach == 40


COUNTED = {
    **{key: mask for key, mask in MASKS.items() if not isinstance(mask, torch.Tensor)},
    "full": masks.full(),
    "offset": masks.causal(offset=-2) & masks.lengths(torch.tensor([3, 6])),
    "offsets": masks.causal(offset=torch.tensor([4, -1])) & masks.prefix(4),
    "window": masks.causal() & masks.window(2, 1),
    "documents": masks.documents(torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 1, 1, 3, 3, 2]])),
    "queries": masks.lengths(torch.tensor([3, 6]), torch.tensor([2, 5])),
}


@pytest.mark.parametrize("mask", COUNTED, ids=str)
def test_visible_keys_are_counted(mask):
    found = visible_counts(COUNTED[mask], (B, 2, Q, K), torch.device("cpu"))
    expected = as_dense(COUNTED[mask]).sum(-1)
    assert torch.equal(found.expand(B, 2, Q), expected)


@pytest.mark.parametrize(("name", "options"), BOTH)
def test_keys_that_are_hidden_or_out_of_reach_are_not_read(name, options):
    layer, query = made(name, window=3, **options), rows(B, 2, DIM)
    keep = torch.tensor([[True, False, True, True, True, True, True], [False] * K])
    results = []
    for poison in (0.0, torch.nan, torch.inf):
        source = rows(B, K, DIM, seed=1).masked_fill(~keep[..., None], poison)
        if name == "local-m":
            source[:, 4] = poison  # queries 0 and 1 reach as far as key 2
        source.requires_grad_()
        layer.zero_grad()
        out = layer(query, source, mask=masks.padding(keep))
        (out * rows(*out.shape, seed=3)).sum().backward()
        results.append([out.detach(), source.grad, *[p.grad.clone() for p in layer.parameters()]])
    assert (results[0][0][1] == 0).all()
    for nonfinite in results[1:]:
        for clean, other in zip(results[0], nonfinite, strict=True):
            close(other, clean)


@pytest.mark.parametrize("name", ["local-p", "local-m"])
def test_invalid_windows_and_scores_are_refused(name):
    for causal in (False, True) if name == "local-p" else (False,):
        with pytest.raises(regard.RegardError, match="window") as caught:
            build(name, dim=DIM, window=4, causal=causal)
        assert "3" in str(caught.value) and "5" in str(caught.value)
    with pytest.raises(regard.RegardError, match="score"):
        build(name, dim=DIM, score="generl")
    with pytest.raises(regard.RegardError, match="window"):
        build(name, dim=DIM, window=0)
