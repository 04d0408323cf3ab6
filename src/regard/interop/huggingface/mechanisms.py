"""`"regard:NAME(options)"`: another mechanism in the layers of an existing model.

The model keeps its projections, its positions and its mask; the mechanism decides how queries, keys and values become
an output. So a mechanism fits if it has no weights but projections: its layer is built without them (on the meta
device) and asked only for the pieces of the call: score, mask, bias, normaliser.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.biases import Bias
from regard.errors import BadValue
from regard.interop.huggingface.mask_functions import joined
from regard.masks import Mask
from regard.masks.algebra import And
from regard.masks.from_tensors import DenseMask
from regard.masks.positional import CausalMask, WindowMask
from regard.nn.hard import Hard
from regard.nn.linear import Linear
from regard.nn.parts.attention import Attention, AttentionInputs
from regard.nn.parts.building import build
from regard.nn.parts.mechanism import Mechanism, entry, names, options_of
from regard.nn.parts.multihead_positions import MultiheadPositions
from regard.registry import parse
from regard.values.grid import full_grid

_PROJECTIONS = ("query_map.", "key_map.", "value_map.", "output_map.")
_OF_THE_MODEL = ("dim", "num_heads", "dropout", "source_dim", "kv_heads", "value_dim", "bias", "qk_norm", "align")


class MechanismChange:
    """A mechanism that takes the place of a model's own attention."""

    def __init__(self, text: str) -> None:
        self.text = text
        plain, self.options = parse(text)
        self.entry = entry(plain)
        for name in self.options:
            if name in _OF_THE_MODEL and name in options_of(self.entry.layer):
                raise BadValue(
                    f"{name}: it belongs to the model that {text!r} would change, so it cannot be chosen here. "
                    f"Leave it out."
                )
        self._layers: dict[tuple[int, int, bool], Mechanism] = {}
        self.example = self._build(2, 8, causal=True)
        why = _misfit(self.example)
        if why is not None:
            raise BadValue(f"attn_implementation: {text!r} {why}. Mechanisms that fit: {', '.join(fitting_names())}.")

    @property
    def feature_map(self) -> str | None:
        """The feature map of linear attention; None for every other mechanism."""
        return self.example.feature_map if isinstance(self.example, Linear) else None

    @property
    def positional(self) -> bool:
        """Whether the result depends on the positions of queries beyond the model's own mask."""
        return not isinstance(self.example, Attention) or self.example.places_queries

    def pieces(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | Tensor | None,
        anchor: dict[str, Any],
        causal: bool,
    ) -> dict[str, Any]:
        """The arguments of `attend` that the mechanism gives: a mask, and where it has them score, bias, normaliser."""
        size = (query.shape[1], query.shape[3], causal)
        if size not in self._layers:
            self._layers[size] = self._build(*size)
        layer = self._layers[size]
        assert isinstance(layer, Attention)
        layer.training = module.training
        mask_value = DenseMask(mask[(None,) * (4 - mask.dim())]) if isinstance(mask, Tensor) else mask
        components = [component for component in (layer.own_mask(**anchor), mask_value) if component is not None]
        both = joined(components) if components else None
        return layer.pieces(AttentionInputs(query, key, value, both, query, 0, None, dict(anchor)))

    def _build(self, heads: int, width: int, causal: bool) -> Mechanism:
        more = {"causal": True} if causal and self.entry.causal == "option" else {}
        with torch.device("meta"):
            return build(self.entry.name, heads * width, **{"num_heads": heads, **more, **self.options})


def _misfit(layer: Mechanism) -> str | None:
    """Why a mechanism cannot take the place of a model's own attention; None where it can."""
    own_weights = [name for name, _ in layer.named_parameters() if not name.startswith(_PROJECTIONS)]
    if own_weights:
        return f"has weights of its own ({', '.join(own_weights)}), which the model does not have"
    if isinstance(layer, Linear):
        return None
    if not isinstance(layer, Attention) or type(layer).forward is not Attention.forward:
        return "is a layer of its own, not a way to weigh the keys of a model"
    if type(layer).mix is not Attention.mix and not isinstance(layer, Hard):
        return "counts positions from the beginning of a source, which a cache of keys does not keep"
    if isinstance(layer, Hard) and layer.reinforce is not None:
        return "needs the training loop of regard for its estimator; the straight-through estimator does not"
    scheme = getattr(layer, "positions", None)
    if isinstance(scheme, MultiheadPositions) and type(scheme).rotate is not MultiheadPositions.rotate:
        return f"rotates queries and keys ({scheme.name}), which is a part of the model; positions=alibi is not"
    return None


def fitting_names() -> list[str]:
    """The mechanisms that can take the place of a model's own attention."""
    fitting = []
    for name in names():
        needed = {option: value for option, value in entry(name).needs.items() if option not in _OF_THE_MODEL}
        with torch.device("meta"):
            layer = build(name, 16, num_heads=2, **needed)
        if _misfit(layer) is None:
            fitting.append(name)
    return fitting


def looks_back(mask: Mask | Tensor | None) -> bool:
    """Whether the structure of a mask shows that no query sees later keys."""
    if isinstance(mask, And):
        return looks_back(mask.left) or looks_back(mask.right)
    return isinstance(mask, CausalMask) or (isinstance(mask, WindowMask) and mask.after == 0)


def summed(theirs: Tensor | None, ours: Bias | None, query: Tensor, keys: int) -> Tensor | Bias | None:
    """The dense bias of a model and that of a mechanism, together."""
    if theirs is None or ours is None:
        return ours if theirs is None else theirs
    return theirs + ours.values(full_grid((*query.shape[:3], keys), query.device), theirs.dtype)
