"""How multi-head attention takes positions into account: one object for each scheme, all with one interface.

A scheme acts in up to three places: it adds parameters to the layer, rotates queries and keys, and gives `attend` a
bias or a score. The parameters belong to the layer itself, so that checkpoints do not depend on this division.

>>> from regard.nn import Multihead, ShawPositions
>>> Multihead(12, num_heads=2, positions=ShawPositions(max_distance=3)).key_table.shape
torch.Size([7, 6])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from regard import biases, scores
from regard.errors import BadType, BadValue
from regard.nn.parts.heads import glorot_linear
from regard.nn.parts.rotary_scaling import RotaryScaling
from regard.nn.positions import rotary, sinusoidal
from regard.nn.sharing import positions_from, whole_length
from regard.registry import Registry, options_of, parse
from regard.support.arguments import described, finite_number, whole_number
from regard.support.options import read_options
from regard.values.grid import position_shift

if TYPE_CHECKING:
    from regard.nn.multihead import Multihead
    from regard.nn.parts.attention import AttentionInputs

T5_BUCKETS = 32
FARTHEST = 128  # the default of max_distance


class MultiheadPositions:
    """The interface of a scheme; what a subclass does not override leaves positions out."""

    name: ClassVar[str] = "none"
    positional: ClassVar[bool] = True  # whether the output depends on where a query stands

    def attach(self, layer: Multihead) -> None:
        """Check that the scheme fits the layer, and add its parameters to the layer."""

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        """Transform queries or keys (b,h,length,d), the first at position `first`, before they are compared."""
        return heads

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        """The bias, or the score and its scale, as `attend` takes them."""
        return {}

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({options})"


class IgnoredPositions(MultiheadPositions):
    """No positions: the output for a query does not depend on the order of the keys."""

    positional = False


class RotaryPositions(MultiheadPositions):
    """Rotates queries and keys by angles proportional to their positions (Su et al. 2021).

    `base`: a larger one rotates the last columns more slowly. `scaling`: none, linear, llama3 or yarn, with the options
    of `regard.nn.parts.rotary_scaling.RotaryScaling`: "rotary(base=500000, scaling=llama3, factor=8, length=8192)".
    """

    name = "rotary"

    def __init__(
        self,
        base: float = 10000.0,
        scaling: str = "none",
        factor: float = 1.0,
        length: int = 8192,
        low: float = 1.0,
        high: float = 4.0,
        fast: float = 32.0,
        slow: float = 1.0,
        gain: float | None = None,
        whole: bool = True,
    ) -> None:
        self.base = finite_number("base", base, above=0)
        rotary_scaling = RotaryScaling(scaling, factor, length, low, high, fast, slow, gain, whole)
        self.scaling = None if rotary_scaling.kind == "none" else rotary_scaling

    def attach(self, layer: Multihead) -> None:
        if layer.head_dim % 2:
            raise BadValue(
                f"positions: rotary rotates pairs of columns, so the width of a head must be even, got "
                f"{layer.head_dim} (dim={layer.dim}, num_heads={layer.num_heads})."
            )

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        positions = positions_from(first, heads.shape[2], heads.device)
        return rotary(heads, positions, self.base, self.scaling)


class AlibiPositions(MultiheadPositions):
    """Subtracts slope · |distance| from the scores, with a fixed slope for each head (Press et al. 2022)."""

    name = "alibi"

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        return {"bias": biases.alibi(layer.num_heads, **inputs.anchor)}


class ClippedPositions(MultiheadPositions):
    """The base of schemes with a table: distances beyond `max_distance` count as `max_distance`."""

    def __init__(self, max_distance: int = FARTHEST) -> None:
        self.max_distance = whole_number("max_distance", max_distance, 1)

    @property
    def distances(self) -> int:
        """How many different distances there are, −max_distance … max_distance."""
        return 2 * self.max_distance + 1


class T5Positions(ClippedPositions):
    """Adds a learned number to the scores for each head and bucket of distances (Raffel et al. 2020)."""

    name = "t5"

    def __init__(self, max_distance: int = FARTHEST, buckets: int = T5_BUCKETS) -> None:
        super().__init__(max_distance)
        self.buckets = whole_number("buckets", buckets, 2)

    def attach(self, layer: Multihead) -> None:
        layer.bias_table = nn.Parameter(torch.randn(self.buckets, layer.num_heads) * 0.02)

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        return {
            "bias": biases.t5(
                layer.bias_table, bidirectional=not layer.causal, max_distance=self.max_distance, **inputs.anchor
            )
        }


class RelativePositions(ClippedPositions):
    """Adds a learned number to the scores for each head and distance."""

    name = "relative"

    def attach(self, layer: Multihead) -> None:
        layer.bias_table = nn.Parameter(torch.randn(layer.num_heads, self.distances) * 0.02)

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        return {"bias": biases.relative(layer.bias_table, **inputs.anchor)}


class ShawPositions(ClippedPositions):
    """Adds a learned vector for the distance to each key before it is compared (Shaw et al. 2018)."""

    name = "shaw"

    def attach(self, layer: Multihead) -> None:
        width = layer.head_dim
        layer.key_table = nn.Parameter(torch.randn(self.distances, width) * width**-0.5)

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        return {"score": scores.shaw(layer.key_table, **inputs.anchor), "scale": layer.head_dim**-0.5}


class TransformerXLPositions(MultiheadPositions):
    """Compares each query with a projected sinusoid of the distance as well (Dai et al. 2019)."""

    name = "transformer-xl"

    def attach(self, layer: Multihead) -> None:
        heads, width = layer.num_heads, layer.head_dim
        layer.distance_map = glorot_linear(layer.dim, heads * width, bias=False)
        layer.content_bias = nn.Parameter(torch.zeros(heads, width))
        layer.position_bias = nn.Parameter(torch.zeros(heads, width))

    def pieces(self, layer: Multihead, inputs: AttentionInputs) -> dict[str, Any]:
        table = self._distance_table(layer, inputs)
        score = scores.transformer_xl(layer.content_bias, layer.position_bias, table, **inputs.anchor)
        return {"score": score, "scale": layer.head_dim**-0.5}

    @staticmethod
    def _distance_table(layer: Multihead, inputs: AttentionInputs) -> Tensor:
        """A projected sinusoid for every distance key − query that can occur, (h, 2r+1, d) for −r … r."""
        like = inputs.query
        queries, keys = (whole_length(rows.shape[2]) for rows in (inputs.query, inputs.key))
        first = position_shift(inputs.anchor.get("align", "bottom-right"), inputs.anchor.get("offset"), queries, keys)
        farthest = max(first + queries, keys - first, keys)
        ahead = sinusoidal(farthest + 1, layer.dim).to(like.device, layer.distance_map.weight.dtype)
        mirrored = torch.ones_like(ahead[0])
        mirrored[::2] = -1  # sin(−x) = −sin(x), and the even columns are the sines
        table: Tensor = layer.distance_map(torch.cat([ahead[1:].flip(0) * mirrored, ahead]))
        by_head: Tensor = table.unflatten(1, (layer.num_heads, -1)).transpose(0, 1).to(like.dtype)
        return by_head


SCHEMES: Registry[type[MultiheadPositions]] = Registry("positions")
for _scheme in (RotaryPositions, AlibiPositions, T5Positions, ShawPositions, TransformerXLPositions, RelativePositions):
    SCHEMES.add(_scheme.name, _scheme)


def positions_of(given: str | MultiheadPositions | None, max_distance: int) -> MultiheadPositions:
    """The scheme that was given, or the one of that name with this `max_distance` where the scheme has one.

    A name may hold the scheme's options: "rotary(base=500000)".
    """
    max_distance = whole_number("max_distance", max_distance, 1)
    if given is None:
        return IgnoredPositions()
    if isinstance(given, str):
        name, options = parse(given)
        scheme = SCHEMES[name]
        if issubclass(scheme, ClippedPositions):
            options.setdefault("max_distance", max_distance)
        return scheme(**read_options(name, scheme, options, options_of(scheme, leading=0)))
    if not isinstance(given, MultiheadPositions):
        raise BadType(
            f"positions: expected one of {', '.join(SCHEMES)}, a MultiheadPositions or None, got {described(given)}."
        )
    return given
