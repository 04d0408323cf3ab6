"""A toy input that shows what a mechanism does, and the attention weights or influences on it.

The input follows a path out and back, so that position i resembles position n − 1 − i: content-based attention gives a
cross, a causal mask cuts it to a triangle, a window to a band. Square projections of the layer are set to the identity,
so that the picture shows the mechanism and not its random initial weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.nn.parts.attention import Attention
from regard.nn.parts.mechanism import Mechanism
from regard.scores.additive import AdditiveScore

POSITIONS = 17  # odd, so that the path has one turning point, and small enough for two pictures in 80 columns
WIDTH = 64
SHOWN_HEADS = 2
BUMP = 1.5  # width of a feature in positions: neighbours resemble each other
LIFT = 10  # factor for tables and vectors of a layer, whose initial values are too small to show
CONTRAST = 0.26  # the share of its row that the largest weight should have
TELLING = 1.1  # mutual information of queries and keys in nats that gives a readable picture
SHARED_AND_OWN = 0.1  # the same for influence, where a residual path would hide the rest
INFLUENCE_GAINS = (0.25, 0.35, 0.5, 1.0, 2.0)
PROBES = 8
GAINS = [2 ** (step / 4) for step in range(-16, 13)]
PATH = (  # spaces that do not break keep the formula in one piece
    f"a path out and back (position i resembles {POSITIONS - 1}\u00a0−\u00a0i), scaled until a pattern shows"
)
ESTIMATED = f"influence is estimated with {PROBES} random directions"
IDENTITY = "square projections are the identity"
LIFTED = f"the layer's own tables and vectors are {LIFT} times their initial values"
PRACTICE_STEPS = 50
PRACTISED = f"trained for {PRACTICE_STEPS} steps to reproduce its input, since an untrained network scores at random"


@dataclass(frozen=True)
class Picture:
    """The picture on a page: for each head an array of queries × keys."""

    quantity: str  # weights, influence, mask or table
    heads: list[Tensor]  # each (q, k), all ≥ 0 except in a table
    about: list[str]  # notes on the input for the reader

    @property
    def means(self) -> str:
        """The meaning of one number of the array."""
        return {
            "weights": "how much query i takes of the value of key j",
            "influence": "how far output i moves when input j moves, as a share of its row",
            "mask": "whether query i may attend to key j",
            "table": "what is added to number j of the row at position i",
        }[self.quantity]

    @property
    def axes(self) -> tuple[str, str]:
        """What a row and a column stand for."""
        named = {"influence": ("an output", "an input"), "table": ("a position", "a column of the table")}
        return named.get(self.quantity, ("a query", "a key"))


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Inside, the CPU generator starts from `seed`; afterwards its state is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the other devices as well
        yield


def path(length: int = POSITIONS, width: int = WIDTH, gain: float = 1.0) -> Tensor:
    """The toy input (1, length, width): a bump over the features, centred at the position along the path."""
    steps = torch.arange(length, dtype=torch.float64)
    along = torch.minimum(steps, length - 1 - steps)
    reach = (length - 1) / 2
    centres = torch.linspace(-0.5, reach + 0.5, width, dtype=torch.float64)
    rows = torch.exp(-((along[:, None] - centres) ** 2) / (2 * BUMP**2))
    rows = rows - rows.mean(0)
    return gain * (rows / rows.std())[None]


def _simplify(layer: Mechanism) -> list[str]:
    """Set square projections to the identity, scale the layer's own tables and vectors, and return notes on it."""
    done: dict[str, None] = {}
    with torch.no_grad():
        for module in layer.modules():
            borrowed = type(module).__module__.startswith("torch.")
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() >= 2 and parameter.shape[-1] == parameter.shape[-2] > 1:
                    parameter.copy_(torch.eye(parameter.shape[-1]))  # also one for each head
                    done[IDENTITY] = None
                elif borrowed and name == "bias":
                    parameter.zero_()
                elif not borrowed:
                    parameter.mul_(LIFT)
                    done[LIFTED] = None
    layer.requires_grad_(False)
    return list(done)


def of_layer(layer: Mechanism) -> Picture:
    """The weights of a layer on the toy input if it has weights, else the influence of inputs on outputs."""
    layer = layer.double().eval()
    note = PATH
    if isinstance(layer, Attention) and _compares_by_network(layer):
        _train_briefly(layer)
        weights = _faithful_weights(layer, path())
        if weights is not None:
            return Picture("weights", list(weights[0, :SHOWN_HEADS]), [note, PRACTISED])
    about = [note, *_simplify(layer)]
    weights = sharpest(lambda rows: _faithful_weights(layer, rows))
    if weights is not None:
        return Picture("weights", list(weights[0, :SHOWN_HEADS]), about)
    return Picture("influence", [_influence(layer)], [*about, ESTIMATED])


def _compares_by_network(layer: Attention) -> bool:
    """Whether the score is a small network, which is meaningless before training."""
    view = layer.prepare(*accepted(layer, path()), None, None)
    return isinstance(layer.pieces(view).get("score"), AdditiveScore)


def _train_briefly(layer: Attention) -> None:
    """Train the layer to reproduce its input: a query has to find similar rows."""
    rows = path()
    query, source = accepted(layer, rows)
    layer.requires_grad_(True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    for _ in range(PRACTICE_STEPS):
        output = layer(query, source)
        assert isinstance(output, Tensor)
        optimizer.zero_grad()
        (output - rows).square().mean().backward()
        optimizer.step()
    layer.requires_grad_(False)


def sharpest(weights: Callable[[Tensor], Tensor | None]) -> Tensor | None:
    """Weights on the toy input, with the gain raised until rows have a clear maximum and differ from each other."""
    best, most = None, -1.0
    for gain in GAINS:
        at_gain = weights(path(gain=gain))
        if at_gain is None:
            return None
        information = _information(at_gain)
        if information > most:
            best, most = at_gain, information
        if information >= TELLING and _contrast(at_gain) >= CONTRAST:
            break
    return best


def _contrast(weights: Tensor) -> float:
    """The first quartile over rows of the share of the largest weight."""
    return float((weights.amax(-1) / weights.sum(-1).clamp_min(1e-9)).quantile(0.25))


def _information(weights: Tensor) -> float:
    """Mutual information of query and key in nats, on average over the heads."""
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)

    def entropy(rows: Tensor) -> Tensor:
        return -(rows * rows.clamp_min(1e-12).log()).sum(-1)

    return float((entropy(shares.mean(-2)) - entropy(shares).mean(-1)).mean())


def _faithful_weights(layer: Mechanism, rows: Tensor) -> Tensor | None:
    """The layer's weights; None where it has none, or its output is not their mean of the values."""
    inputs = accepted(layer, rows)
    offered = getattr(layer, "weights", None)
    if not callable(offered):
        return None
    try:
        weights = offered(*inputs)
    except NotImplementedError:
        return None
    if not isinstance(weights, Tensor) or weights.shape[2:] != (POSITIONS, POSITIONS):
        return None
    if isinstance(layer, Attention):
        view = layer.prepare(*inputs, None, None)
        values = view.value.repeat_interleave(weights.shape[1] // view.value.shape[1], dim=1)
        mixed, product = layer.mix(view), weights @ values
        return weights if mixed.shape == product.shape and torch.allclose(mixed, product) else None
    return weights


def accepted(layer: Mechanism, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Query and source as the layer accepts them: self-attention, or with a source where that is required."""
    try:
        layer(rows)
        return rows, None
    except RegardError:
        layer(rows, rows)
        return rows, rows


def _influence(layer: Mechanism) -> Tensor:
    """The influence at the gain whose mutual information is nearest to `SHARED_AND_OWN`."""
    influences = [_influence_at(layer, path(gain=gain)) for gain in INFLUENCE_GAINS]
    return min(influences, key=lambda shares: abs(_information(shares[None]) - SHARED_AND_OWN))


def _influence_at(layer: Mechanism, rows: Tensor) -> Tensor:
    """‖∂ output_i / ∂ source_j‖, each row divided by its sum, (q, k)."""
    alone = accepted(layer, rows)[1] is None
    # One batch entry for each output row, so that one backward pass serves all of them.
    source = rows.expand(POSITIONS, -1, -1).clone().requires_grad_()
    output = layer(source) if alone else layer(source.detach(), source)
    assert isinstance(output, Tensor)
    diagonal = output.diagonal(dim1=0, dim2=1).T  # (POSITIONS, width)
    # ‖J‖² is the mean of ‖Jᵀ v‖² over random signs v; a few are enough for four shades.
    signs = torch.randint(2, (PROBES, diagonal.shape[1]), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    total = torch.zeros(POSITIONS, POSITIONS, dtype=rows.dtype)
    for probe in signs.to(diagonal.dtype):
        (grad,) = torch.autograd.grad((diagonal @ probe).sum(), source, retain_graph=True, allow_unused=True)
        if grad is not None:
            total += grad.square().sum(-1)
    norms = total.sqrt()
    return norms / norms.sum(-1, keepdim=True).clamp_min(1e-12)
