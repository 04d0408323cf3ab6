"""A toy input on which a mechanism shows what it does, and the numbers of the picture it gives.

The input walks along a path and comes back, so that position i resembles position n − 1 − i: attention by content
draws a cross, a causal mask cuts it to a triangle, a window to a band. A layer's square projections are the
identity, so that the picture shows the mechanism and not one draw of its initial weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.nn.attention import Attention
from regard.nn.mechanism import Mechanism
from regard.scores.additive import AdditiveScore

POSITIONS = 17  # odd, so that the path has one turning point, and small enough for two pictures in 80 columns
WIDTH = 64
SHOWN_HEADS = 2
BUMP = 1.5  # positions a feature reaches to either side: neighbours resemble each other
LIFT = 10  # tables and vectors of a layer start small; what they do should be seen
CONTRAST = 0.26  # the share of its row that the largest weight should have
TELLING = 1.1  # nats a row should tell about its query: enough for the eye, not yet a line of single points
SHARED_AND_OWN = 0.1  # the same for influence, where a layer's residual path would outshine the rest
INFLUENCE_GAINS = (0.25, 0.35, 0.5, 1.0, 2.0)
PROBES = 8
GAINS = [2 ** (step / 4) for step in range(-16, 13)]
PATH = (  # spaces that do not break keep the formula in one piece
    f"a path out and back (position i resembles {POSITIONS - 1}\u00a0−\u00a0i), scaled until a pattern shows"
)
ESTIMATED = f"influence is estimated with {PROBES} random directions"
IDENTITY = "square projections are the identity"
LIFTED = f"the layer's own tables and vectors are {LIFT} times their first values"
PRACTICE_STEPS = 50
PRACTISED = (
    f"trained for {PRACTICE_STEPS} steps to give its input back, since an untrained network scores at random"
)


@dataclass(frozen=True)
class Picture:
    """What a page draws: for each head an array of queries × keys."""

    quantity: str  # weights, influence or mask
    heads: list[Tensor]  # each (q, k), all ≥ 0
    about: list[str]  # what the reader has to know about the input

    @property
    def means(self) -> str:
        """What one number of the array says."""
        return {
            "weights": "how much query i takes of the value of key j",
            "influence": "how far output i moves when input j moves, as a share of its row",
            "mask": "whether query i may attend to key j",
        }[self.quantity]


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Inside, the random numbers of the CPU start from `seed`; outside, nothing has happened."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach the other devices as well
        yield


def path(length: int = POSITIONS, width: int = WIDTH, gain: float = 1.0) -> Tensor:
    """The toy input (1, length, width): bumps along the features, at the place where the walker stands."""
    steps = torch.arange(length, dtype=torch.float64)
    place = torch.minimum(steps, length - 1 - steps)
    reach = (length - 1) / 2
    centres = torch.linspace(-0.5, reach + 0.5, width, dtype=torch.float64)
    rows = torch.exp(-((place[:, None] - centres) ** 2) / (2 * BUMP**2))
    rows = rows - rows.mean(0)
    return gain * (rows / rows.std())[None]


def _simplify(layer: Mechanism) -> list[str]:
    """Make square projections the identity, lift the layer's own tables and vectors, and say what was done."""
    done: dict[str, None] = {}
    with torch.no_grad():
        for module in layer.modules():
            borrowed = type(module).__module__.startswith("torch.")
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() >= 2 and parameter.shape[-1] == parameter.shape[-2] > 1:
                    parameter.copy_(
                        torch.eye(parameter.shape[-1])
                    )  # one for each head, where there are heads
                    done[IDENTITY] = None
                elif borrowed and name == "bias":
                    parameter.zero_()
                elif not borrowed:
                    parameter.mul_(LIFT)
                    done[LIFTED] = None
    layer.requires_grad_(False)
    return list(done)


def of_layer(layer: Mechanism) -> Picture:
    """The weights of a layer on the toy input where it has some, else the influence of inputs on outputs."""
    layer = layer.double().eval()
    known = PATH
    if isinstance(layer, Attention) and _compares_by_network(layer):
        _practise(layer)
        found = _faithful_weights(layer, path())
        if found is not None:
            return Picture("weights", list(found[0, :SHOWN_HEADS]), [known, PRACTISED])
    about = [known, *_simplify(layer)]
    found = sharpest(lambda rows: _faithful_weights(layer, rows))
    if found is not None:
        return Picture("weights", list(found[0, :SHOWN_HEADS]), about)
    return Picture("influence", [_influence(layer)], [*about, ESTIMATED])


def _compares_by_network(layer: Attention) -> bool:
    """Whether the score is a small network, which says nothing before it has learnt something."""
    view = layer.prepare(*accepted(layer, path()), None, None)
    return isinstance(layer.pieces(view).get("score"), AdditiveScore)


def _practise(layer: Attention) -> None:
    """Train the layer to give its input back: a query has to find the rows that are like it."""
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
    """Weights on the toy input, its gain raised until the eye finds the largest of a row, and rows differ."""
    best, most = None, -1.0
    for gain in GAINS:
        found = weights(path(gain=gain))
        if found is None:
            return None
        told = _information(found)
        if told > most:
            best, most = found, told
        if told >= TELLING and _contrast(found) >= CONTRAST:
            break
    return best


def _contrast(weights: Tensor) -> float:
    """The share of the largest weight in most rows; the first rows of a causal layer see little and do not count."""
    return float((weights.amax(-1) / weights.sum(-1).clamp_min(1e-9)).quantile(0.25))


def _information(weights: Tensor) -> float:
    """How many nats the choice of a key tells about the query, on average over the heads."""
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)

    def entropy(rows: Tensor) -> Tensor:
        return -(rows * rows.clamp_min(1e-12).log()).sum(-1)

    return float((entropy(shares.mean(-2)) - entropy(shares).mean(-1)).mean())


def _faithful_weights(layer: Mechanism, rows: Tensor) -> Tensor | None:
    """The layer's weights; None where it has none, or mixes its values in a way that they do not tell all of."""
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
        mixed, told = layer.mix(view), weights @ values
        return weights if mixed.shape == told.shape and torch.allclose(mixed, told) else None
    return weights


def accepted(layer: Mechanism, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Query and source as the layer takes them: alone, or, where it refuses that, with a source."""
    try:
        layer(rows)
        return rows, None
    except RegardError:
        layer(rows, rows)
        return rows, rows


def _influence(layer: Mechanism) -> Tensor:
    """The influence at the gain that lets the rows differ while what is shared by all of them is still in sight."""
    found = [_influence_at(layer, path(gain=gain)) for gain in INFLUENCE_GAINS]
    return min(found, key=lambda shares: abs(_information(shares[None]) - SHARED_AND_OWN))


def _influence_at(layer: Mechanism, rows: Tensor) -> Tensor:
    """‖∂ output_i / ∂ source_j‖, each row divided by its sum, (q, k)."""
    alone = accepted(layer, rows)[1] is None
    # One entry of the batch for each output row: a backward pass then serves all of them at once.
    source = rows.expand(POSITIONS, -1, -1).clone().requires_grad_()
    output = layer(source) if alone else layer(source.detach(), source)
    assert isinstance(output, Tensor)
    own = output.diagonal(dim1=0, dim2=1).T  # (POSITIONS, width)
    # ‖J‖² is the mean of ‖Jᵀ v‖² over random signs v, and a few of them are enough for four shades.
    signs = torch.randint(2, (PROBES, own.shape[1]), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    total = torch.zeros(POSITIONS, POSITIONS, dtype=rows.dtype)
    for probe in signs.to(own.dtype):
        (grad,) = torch.autograd.grad((own @ probe).sum(), source, retain_graph=True, allow_unused=True)
        if grad is not None:
            total += grad.square().sum(-1)
    found = total.sqrt()
    return found / found.sum(-1, keepdim=True).clamp_min(1e-12)
