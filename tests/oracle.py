"""The independent truth: attention written down from the definitions of the API, on complete rows.

Nothing here imports regard. Everything is plain broadcasting over (b, h, q, k), in whatever dtype its inputs
have: in float64 it is the reference, in a lower dtype it is "the plain formula" of promise 7.
`tests/test_oracle.py` holds these lines against Python loops, torch and brute force.
"""

import math

import torch


def expand_heads(x, h):
    """(b,g,k,d) -> (b,h,k,d): query head i reads key head i // (h/g)."""
    g = x.shape[1]
    return x if g == h else torch.stack([x[:, i // (h // g)] for i in range(h)], dim=1)


def positions(q, k):
    """Position of each query: the last query stands at the last key."""
    return [i + (k - q) for i in range(q)]


def visible(predicate, b, h, q, k):
    """A dense bool mask, entry by entry, from predicate(b, h, i, j)."""
    rows = [[[[bool(predicate(n, m, i, j)) for j in range(k)] for i in range(q)] for m in range(h)] for n in range(b)]
    return torch.tensor(rows, dtype=torch.bool).reshape(b, h, q, k)


def entries(function, b, h, q, k):
    """A dense float64 tensor, entry by entry, from function(b, h, i, j)."""
    rows = [[[[float(function(n, m, i, j)) for j in range(k)] for i in range(q)] for m in range(h)] for n in range(b)]
    return torch.tensor(rows, dtype=torch.float64).reshape(b, h, q, k)


def distance_index(q, k, r):
    """clip(pos_k − pos_q, −r, r) + r for every pair, (q,k)."""
    pos = positions(q, k)
    rows = [[max(-r, min(r, j - pos[i])) + r for j in range(k)] for i in range(q)]
    return torch.tensor(rows, dtype=torch.long).reshape(q, k)


# --- scores: f(query (b,h,q,d), key (b,h,k,d), scale, tensors) -> (b,h,q,k) ---------------------------------


def _dots(query, key):
    return query @ key.transpose(-1, -2)


def _default(scale, value):
    return value if scale is None else scale


def scaled_dot(query, key, scale, t):
    return _dots(query, key) * _default(scale, 1 / math.sqrt(query.shape[-1]))


def dot(query, key, scale, t):
    return _dots(query, key) * _default(scale, 1.0)


def softcap(query, key, scale, t):
    return t["cap"] * torch.tanh(scaled_dot(query, key, scale, t) / t["cap"])


def general(query, key, scale, t):
    return _dots(query @ t["weight"], key) * _default(scale, 1.0)


def _hidden_layer(query, key, weight):
    """weight·tanh(q_i + k_j) for every pair; weight (a,) or (h,a)."""
    hidden = torch.tanh(query[:, :, :, None, :] + key[:, :, None, :, :])
    return (hidden @ weight) if weight.dim() == 1 else (hidden @ weight[:, None, :, None])[..., 0]


def additive(query, key, scale, t):
    return _hidden_layer(query, key, t["weight"]) * _default(scale, 1.0)


def concat(query, key, scale, t):
    left = query @ t["weight_query"].transpose(-1, -2)
    right = key @ t["weight_key"].transpose(-1, -2)
    return _hidden_layer(left, right, t["weight"]) * _default(scale, 1.0)


def _unit(x):
    square = (x * x).sum(-1, keepdim=True)
    zero = square == 0
    return torch.where(zero, 0.0, x / torch.where(zero, 1.0, square).sqrt())


def cosine(query, key, scale, t):
    strength = t["strength"]
    if isinstance(strength, torch.Tensor) and strength.dim() == 1:
        strength = strength[:, None, None]
    return _dots(_unit(query), _unit(key)) * strength * _default(scale, 1.0)


def _relative_rows(table, q, k):
    """table[clip(pos_k − pos_q)] for every pair: (q,k,d) or (h,q,k,d)."""
    return table[..., distance_index(q, k, table.shape[-2] // 2).to(table.device), :]


def shaw(query, key, scale, t):
    rows = _relative_rows(t["table"], query.shape[2], key.shape[2])
    return (_dots(query, key) + (query[:, :, :, None, :] * rows).sum(-1)) * _default(scale, 1.0)


def transformer_xl(query, key, scale, t):
    rows = _relative_rows(t["table"], query.shape[2], key.shape[2])
    content, position = (
        query + (t[name] if t[name].dim() == 1 else t[name][:, None, :]) for name in ("content_bias", "position_bias")
    )
    return (_dots(content, key) + (position[:, :, :, None, :] * rows).sum(-1)) * _default(scale, 1.0)


# --- biases: f(q, k, tensors) -> broadcastable to (b,h,q,k) --------------------------------------------------


def alibi_slopes(n):
    """Press et al. 2022: 2^(−8/n), its powers; between powers of two, every second slope of the next power."""
    if n & (n - 1) == 0:
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    lower = 2 ** math.floor(math.log2(n))
    return alibi_slopes(lower) + alibi_slopes(2 * lower)[0::2][: n - lower]


def alibi(h, q, k):
    slopes, pos = alibi_slopes(h), positions(q, k)
    return entries(lambda _, m, i, j: -slopes[m] * abs(pos[i] - j), 1, h, q, k)


def relative(table, q, k):
    """Entry clip(pos_k − pos_q, −r, r) + r of table (h|1, 2r+1)."""
    return table[:, distance_index(q, k, table.shape[-1] // 2).to(table.device)][None]


def t5_bucket(distance, buckets, bidirectional, max_distance):
    """Bucket of one distance (key − query), derived in whole numbers.

    Half of a side's buckets are exact; the others are spaced so that bucket exact + m begins where
    (distance / exact)^large >= (max_distance / exact)^m, up to the last one.
    """
    start = 0
    if bidirectional:
        buckets //= 2
        start = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    large, m = buckets - exact, 0
    while m < large - 1 and distance**large * exact ** (m + 1) >= max_distance ** (m + 1) * exact**large:
        m += 1
    return start + exact + m


def t5(table, q, k, bidirectional, max_distance):
    """(buckets, h) -> (1,h,q,k)."""
    pos = positions(q, k)
    index = [[t5_bucket(j - pos[i], table.shape[0], bidirectional, max_distance) for j in range(k)] for i in range(q)]
    return table[torch.tensor(index, device=table.device).reshape(q, k)].permute(2, 0, 1)[None]


def gaussian(center, sigma, k):
    j = torch.arange(k, dtype=center.dtype, device=center.device)
    return -((j - center[..., None]) ** 2) / (2 * sigma**2)


# --- normalisers: f(scores, visible) -> weights, a row without a finite score gets zeros --------------------


def _rows(scores, seen):
    """Scores with −inf where hidden, rows without any score made harmless, and which entries live."""
    z = scores.masked_fill(~seen, -math.inf)
    alive = seen & (z != -math.inf)
    return torch.where(alive.any(-1, keepdim=True), z, 0.0), alive


def softmax(scores, seen):
    z, alive = _rows(scores, seen)
    return torch.where(alive, torch.softmax(z, dim=-1), 0.0)


def sigmoid(scores, seen):
    return torch.where(seen, torch.sigmoid(scores), 0.0)


def sparsemax(scores, seen):
    """Euclidean projection onto the simplex: weights (z − τ)+, τ by bisection, then its closed form."""
    z, alive = _rows(scores, seen)
    with torch.no_grad():
        high = z.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(80):
            middle = (low + high) / 2
            over = (z - middle).clamp(min=0).sum(-1, keepdim=True) > 1
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        support = (z > high) & alive
    count = support.sum(-1, keepdim=True).clamp(min=1)
    threshold = (torch.where(support, z, 0.0).sum(-1, keepdim=True) - 1) / count
    return torch.where(support, z - threshold, 0.0)


def entmax15(scores, seen):
    """Peters et al. 2019, α = 1.5: weights (z/2 − τ)+², τ by bisection, one implicit Newton step for autograd."""
    z, alive = _rows(scores, seen)
    z = z / 2
    with torch.no_grad():
        high = z.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(80):
            middle = (low + high) / 2
            over = (z - middle).clamp(min=0).square().sum(-1, keepdim=True) > 1
            low, high = torch.where(over, middle, low), torch.where(over, high, middle)
        threshold, support = high, (z > high) & alive
        slope = (2 * torch.where(support, z - threshold, 0.0)).sum(-1, keepdim=True)
        slope = torch.where(slope > 0, slope, 1.0)
    excess = torch.where(support, z - threshold, 0.0).square().sum(-1, keepdim=True) - 1
    excess = torch.where(support.any(-1, keepdim=True), excess, 0.0)
    return torch.where(support, z - (threshold + excess / slope), 0.0).square()


def hard(scores, seen):
    """One to the first of the largest visible scores, by loops."""
    flat_scores = scores.detach().reshape(-1, scores.shape[-1]).tolist()
    flat_seen = seen.expand_as(scores).reshape(-1, scores.shape[-1]).tolist()
    chosen = []
    for row, may in zip(flat_scores, flat_seen, strict=True):
        best, top = -1, -math.inf
        for j, (value, ok) in enumerate(zip(row, may, strict=True)):
            if ok and value > top:
                best, top = j, value
        chosen.append([1.0 if j == best else 0.0 for j in range(len(row))])
    return torch.tensor(chosen, dtype=scores.dtype, device=scores.device).reshape(scores.shape)


def sorted_sparsemax(scores, seen):
    """Martins & Astudillo 2016, algorithm 1, in the dtype given: the plain formula of sparsemax."""
    z, alive = _rows(scores, seen)
    z = z - z.amax(-1, keepdim=True).detach()
    ordered = z.sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    total = ordered.masked_fill(ordered == -math.inf, 0.0).cumsum(-1)
    inside = (1 + count * ordered > total) & (ordered > -math.inf)
    size = inside.sum(-1, keepdim=True)
    threshold = (total.gather(-1, size - 1) - 1) / size
    return torch.where(alive, (z - threshold).clamp(min=0), 0.0)


def sorted_entmax15(scores, seen):
    """Peters et al. 2019, algorithm 2, in the dtype given: the plain formula of 1.5-entmax."""
    z, alive = _rows(scores, seen)
    z = (z - z.amax(-1, keepdim=True).detach()) / 2
    ordered = z.sort(-1, descending=True).values
    finite = ordered > -math.inf
    ordered = ordered.masked_fill(~finite, 0.0)
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    mean = ordered.cumsum(-1) / count
    square = ordered.square().cumsum(-1) / count
    gap = ((1 - count * (square - mean.square())) / count).clamp(min=0)
    threshold = mean - torch.where(gap > 0, gap, 1.0).sqrt() * (gap > 0)
    inside = (threshold <= ordered) & finite
    chosen = threshold.gather(-1, inside.sum(-1, keepdim=True).clamp(min=1) - 1)
    return torch.where(alive, (z - chosen).clamp(min=0).square(), 0.0)


EXACT = {"softmax": softmax, "sigmoid": sigmoid, "sparsemax": sparsemax, "entmax15": entmax15, "hard": hard}
PLAIN = {**EXACT, "sparsemax": sorted_sparsemax, "entmax15": sorted_entmax15}


# --- the whole -----------------------------------------------------------------------------------------------


def weigh(normalizer, scores, seen, sink=None):
    """Weights with an optional sink: one more visible score per row whose weight is thrown away."""
    if sink is None:
        return normalizer(scores, seen)
    shape = (*scores.shape[:-1], 1)
    column = sink[:, None, None].expand(shape)
    ends = torch.cat([scores, column], -1), torch.cat([seen.expand_as(scores), seen.new_ones(shape)], -1)
    return normalizer(*ends)[..., :-1]


def logsumexp(scores, seen):
    """Over the visible scores; −inf, without gradient, where there is none."""
    z, alive = _rows(scores, seen)
    return torch.where(alive.any(-1), torch.logsumexp(z, -1), -math.inf)


def attend(
    query,
    key,
    value,
    *,
    score=scaled_dot,
    tensors=None,
    seen=None,
    bias=None,
    normalizer=softmax,
    scale=None,
    sink=None,
):
    """Output (b,h,q,v), logsumexp (b,h,q), weights (b,h,q,k) and scores, from the definitions."""
    h = query.shape[1]
    key, value = expand_heads(key, h), expand_heads(value, h)
    scores = score(query, key, scale, tensors or {})
    if bias is not None:
        scores = scores + bias
    if seen is None:
        seen = torch.ones((), dtype=torch.bool, device=query.device)
    seen = seen.expand(scores.shape)
    weights = weigh(normalizer, scores, seen, sink)
    return weights @ value, logsumexp(scores, seen), weights, scores
