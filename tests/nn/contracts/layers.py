"""Every mechanism of the registry, built small, and what the contracts share: inputs, masks, gradients.

The sizes differ from each other (b, q, k are distinct primes), so that a mixed-up axis cannot go unnoticed. All numbers
are float64 unless a test is about another dtype: what only rounding may change is then compared to 1e-9.
"""

import zlib
from dataclasses import dataclass, field

import torch

import regard.nn
from regard import masks

B, Q, K = 3, 5, 7
SOURCE = 10  # source_dim of cross use, unequal to every dim

# The mechanisms of the specification (part A), by name.
SPECIFIED = [
    "additive",
    "causal",
    "concat",
    "dot",
    "dynamic-memory",
    "general",
    "global",
    "global-layer",
    "global-query",
    "hard",
    "interactive",
    "key-value-memory",
    "linear",
    "local",
    "local-layer",
    "local-m",
    "local-p",
    "multihead",
    "ntm",
    "query-key-memory",
    "relative",
    "static-memory",
]

# They accept only masks that have a `keep`; linear accepts causal() besides.
KEEP_ONLY = {"static-memory", "dynamic-memory", "ntm", "global-query"}

# Their queries are keys as well: a mask over a source does not cover padding among the queries, and the contents of a
# query reach the rows after it.
QUERIES_ARE_KEYS = {"key-value-memory", "global-layer", "local-layer"}

# Centres are absolute positions (Luong's p_t), so padding on the left changes them.
FROM_THE_LEFT = {"local-m", "local-p"}

# They loop over positions in Python, so graphs and memory measurements of many thousand steps are left out.
SEQUENTIAL = {"ntm", "dynamic-memory"}

# Options that select other code paths of a mechanism, in addition to `needs` of the registry.
VARIANTS = {
    "multihead": [
        {"dim": 12, "num_heads": 4, "kv_heads": 2},
        {"num_heads": 3, "kv_heads": 1, "qk_norm": True},
        {"dim": 8, "positions": "rotary"},
        {"positions": "alibi"},
        {"positions": "t5"},
        {"positions": "shaw", "max_distance": 3},
        {"positions": "transformer-xl"},
        {"positions": "relative", "max_distance": 3},
        {"normalize": "sparsemax"},
        {"normalize": "sigmoid", "bias": False},
        {"num_heads": 3, "value_dim": 5},
    ],
    "relative": [{"dim": 8, "positions": "rotary"}],
    "local": [{"window": 3, "positions": "alibi"}],
    "query-key-memory": [{"window": 3}],
    "hard": [{"kv_heads": 1}],
    "linear": [{"feature_map": "relu"}],
    "local-m": [{"score": "concat", "gaussian": True}],
    "local-p": [{"score": "concat", "renormalize": True}],
    "global-layer": [{"norm": "post"}, {"norm": "none", "residual": False}],
    "global-query": [{"project": True, "activation": "tanh"}],
    "dynamic-memory": [{"slots": 2, "segment": 1}, {"update": "memory"}, {"bidirectional": True, "segment": 3}],
    "ntm": [{"controller": "lstm", "initial": "constant", "write_heads": 1}],
}


@dataclass(frozen=True)
class Case:
    """A mechanism with options for a small example."""

    name: str
    options: dict = field(default_factory=dict)

    def __str__(self):
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def __hash__(self):
        return hash(str(self))

    @property
    def dim(self):
        return self.options.get("dim", 6)

    @property
    def causal(self):
        always = regard.nn.entry(self.name).causal == "yes" and not self.options.get("bidirectional", False)
        return always or self.options.get("causal", False)

    @property
    def by_position(self):
        """Whether the result depends on the position of a query in a source."""
        chosen = {"causal", "positions", "window"} & set(self.options)
        return self.name in {"local", "causal", "relative", "local-layer"} or bool(chosen)

    def build(self, cross=False, dtype=torch.float64, **extra):
        """The layer in evaluation mode, with random numbers in every parameter, because zeros would hide mistakes."""
        torch.manual_seed(zlib.crc32(str(self).encode()))
        given = {"num_heads": 2, **regard.nn.entry(self.name).needs, **self.options, **extra}
        if cross:
            given.setdefault("source_dim", SOURCE)
        given.setdefault("dim", self.dim)
        layer = regard.nn.build(self.name, **given).to(dtype).eval()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, dtype=dtype))
        return layer

    def inputs(self, cross=False, b=B, q=Q, k=K, dtype=torch.float64, seed=1):
        """[query] or [query, source], random."""
        generator = torch.Generator().manual_seed(seed)
        query = torch.randn(b, q if cross else k, self.dim, generator=generator, dtype=torch.float64)
        found = [query.to(dtype)]
        if cross:
            source = torch.randn(b, k, SOURCE, generator=generator, dtype=torch.float64)
            found.append(source.to(dtype))
        return found


def plain_cases():
    return [Case(name) for name in regard.nn.names()]


def causal_cases():
    """Mechanisms that are always causal, and those with the option, with causal=True."""
    found = []
    for case in plain_cases() + variants():
        kind = regard.nn.entry(case.name).causal
        if case.causal:
            found.append(case)
        elif kind == "option":
            found.append(Case(case.name, {**case.options, "causal": True}))
    return found


def variants():
    return [Case(name, options) for name in VARIANTS if name in regard.nn.names() for options in VARIANTS[name]]


PLAIN = plain_cases()
CAUSAL = causal_cases()
ALL = PLAIN + variants()
PRESETS = [case for case in CAUSAL if set(case.options) <= {"causal"}]  # no variants
USES = [False, True]
# Every mechanism in self- and cross-attention; variants and causal forms in self-attention only.
USED = [(case, cross) for case in PLAIN for cross in USES]
USED += [(case, False) for case in variants() + [case for case in PRESETS if case.options]]


def named(part):
    """The id of a case or use in test names."""
    return str(part) if isinstance(part, Case) else "cross" if part else "self"


def weight_of(shape):
    """Weights for a sum over an output; entry (b,q) does not depend on the shape."""
    generator = torch.Generator().manual_seed(11)
    return torch.randn(8, 16, 16, generator=generator, dtype=torch.float64)[: shape[0], : shape[1], : shape[2]]


def gradients(layer, out, rows, inputs):
    """Gradients of a weighted sum over chosen rows (b,q) of the output, by name of input or parameter."""
    loss = (out[rows] * weight_of(out.shape).to(out.dtype)[rows]).sum()
    wanted = {f"input {i}": x for i, x in enumerate(inputs)} | dict(layer.named_parameters())
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(wanted.items(), grads, strict=True)
    }


def everything(shape):
    """All rows of an output."""
    return torch.ones(shape[:2], dtype=torch.bool)


def answer(layer, inputs, mask=None, rows=None):
    """Output on chosen rows, and every gradient, by name."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = layer(*inputs, mask=mask)
    rows = everything(out.shape) if rows is None else rows
    return {"output": out.detach()[rows], **gradients(layer, out, rows, inputs)}


def assert_same(found, expected, leave=(), **tolerance):
    """Assert equality up to rounding, part by part."""
    tolerance = tolerance or {"rtol": 1e-9, "atol": 1e-9}
    assert found.keys() == expected.keys()
    for part, x in expected.items():
        if part not in leave:
            assert x.isfinite().all(), f"{part}: the expected numbers are finite"
            torch.testing.assert_close(found[part], x, msg=lambda text, part=part: f"{part}: {text}", **tolerance)


HOLES = torch.tensor([[1, 0, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)
LENGTHS = torch.tensor([7, 5, 2])
SHORTER = torch.arange(K) < LENGTHS[:, None]

# name: (mask, keep (b,k))
HIDING = {
    "padding": (masks.padding(HOLES), HOLES),
    "lengths": (masks.lengths(LENGTHS), SHORTER),
    "raw (b,1,k)": (HOLES[:, None, :], HOLES),
}
