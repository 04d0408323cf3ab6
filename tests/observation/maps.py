"""A fake site with given weights and the methods that analyses need."""

import torch


class Map:
    """A site with given weights (b,h,q,k), one tensor per call; records the size of the largest request."""

    def __init__(self, *calls, name="layer", rows="position", columns="source", cross=False):
        self.given, self.name, self.rows, self.columns, self.cross = calls, name, rows, columns, cross
        self.kind, self.how, self.calls, self.largest = "given", "exact", len(calls), 0

    def shape(self, call=-1):
        return tuple(self.given[call].shape)

    def weights(self, rows=None, heads=None, call=-1):
        found = self.given[call]
        found = found if heads is None else found[:, heads]
        found = found if rows is None else found[:, :, rows]
        self.largest = max(self.largest, found.numel())
        return found

    def pooled(self, height, width, heads=None, call=-1, batch=0, sampled=True):
        found = self.given[call][batch]
        found = found if heads is None else found[heads]
        return torch.nn.functional.adaptive_max_pool2d(found, (height, width))


class Maps:
    """Several fake sites, by name."""

    def __init__(self, *sites):
        self.sites = {site.name: site for site in sites}

    def names(self):
        return list(self.sites)

    def __getitem__(self, name):
        return self.sites[name]

    def __iter__(self):
        return iter(self.sites)

    def __len__(self):
        return len(self.sites)


def soft(*shape, causal=False, generator=None, sharp=1.0):
    """Random weights (…, q, k) that sum to 1; causal maps are aligned at the bottom right."""
    scores = sharp * torch.randn(*shape, generator=generator)
    if causal:
        hidden = torch.ones(shape[-2:], dtype=torch.bool).triu(1 + shape[-1] - shape[-2])
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1)


def pointing(targets, keys, causal=False, leak=0.0):
    """One head (1,1,q,k): row i gives all but `leak` to `targets[i]` (a number, several, or None: everywhere)."""
    queries = len(targets)
    seen = torch.ones(queries, keys).tril(keys - queries) if causal else torch.ones(queries, keys)
    table = seen / seen.sum(-1, keepdim=True)
    for i, target in enumerate(targets):
        if target is not None:
            own = torch.zeros(keys)
            own[target] = 1.0
            own *= seen[i]
            if own.sum() > 0:
                table[i] = (1 - leak) * own / own.sum() + leak * table[i]
    return table[None, None]
