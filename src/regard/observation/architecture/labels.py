"""What a module is called in a picture: a name people know, its sizes, and the kind that decides its colour."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from regard.nn.parts.mechanism import Mechanism
from regard.nn.positions import PositionalEncoding

SILENT = (nn.Dropout, nn.Identity)  # nothing to see in evaluation
SIMPLE = (nn.Linear, nn.RNNBase, *SILENT)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)
_NAMES = {
    "feed forward": "feed-forward",
    "self attn": "self-attention",
    "cross attn": "cross-attention",
    "re LU": "ReLU",
    "leaky re LU": "leaky ReLU",
    "si LU": "SiLU",
}
_NO_ROLE = ("", "rows", "map", "attention", "attentions", "attn", "self attn", "cross", "cross attn", "cells")


def words(name: str) -> str:
    """A name of Python as words: FeedForward and feed_forward are "feed-forward"."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name.replace("_", " ")).strip()
    plain = (
        apart if apart.isupper() else " ".join(w if w.isupper() and len(w) > 1 else w.lower() for w in apart.split())
    )
    return _NAMES.get(plain, plain)


def role_of(path: str) -> str:
    """The last part of a path that is no number, in words."""
    return next((words(segment) for segment in reversed(path.split(".")) if not segment.isdigit()), "")


def is_one_box(module: nn.Module) -> bool:
    """Whether a module is drawn as one box: a leaf, a mechanism, or a few linear or recurrent maps.

    What parametrises the weights of a layer, as spectral normalisation does, is part of its box.
    """
    children = [child for name, child in module.named_children() if name != "parametrizations"]
    if not children:
        return True
    if isinstance(module, Mechanism):
        return not any(isinstance(submodule, Mechanism) for submodule in module.modules() if submodule is not module)
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and all(
        isinstance(child, SIMPLE) for child in children
    )


def described(module: nn.Module, path: str, sources: int) -> tuple[str, str, str]:
    """Label, detail and kind of a module that is drawn as one box and reads from so many others."""
    role = role_of(path)
    if isinstance(module, Mechanism):
        return _mechanism(module, role, sources)
    name = words(type_before_parametrizations(module).__name__)
    if isinstance(module, nn.MultiheadAttention):
        return _attention(role, sources, False), f"{module.num_heads} heads × {module.head_dim}", "attention"
    if isinstance(module, PositionalEncoding):
        return f"{name} positions", "", "embedding"
    if isinstance(module, NORMS):
        return name, str(_size(module)), "norm"
    if isinstance(module, nn.Embedding):
        label = role_of(path.rpartition(".")[0]) if role in _NO_ROLE else role
        return label or "embedding", f"{module.num_embeddings:,} × {module.embedding_dim}", "embedding"
    if isinstance(module, nn.Linear):
        above = role_of(path.rpartition(".")[0])
        kind = "embedding" if role == "rows" else "map"
        label = (above if role == "rows" else role) or "linear"
        return "linear" if label in _NO_ROLE else label, f"{module.in_features} → {module.out_features}", kind
    cells = [submodule for submodule in module.modules() if isinstance(submodule, (nn.RNNBase, nn.RNNCellBase))]
    if cells:
        return _recurrent(cells[0], role)
    chain = _chain([submodule for submodule in module.modules() if isinstance(submodule, nn.Linear)])
    listed = path.rsplit(".", 1)[-1].isdigit()  # one of several: its class says more than the name of the list
    label = role if role and not listed and not role.startswith("around") else name
    kind = "attention" if "attention" in name else "recurrent" if "LSTM" in name or "recurrent" in label else "map"
    return label if chain or role not in _NO_ROLE else name, chain, kind


def _mechanism(module: Mechanism, role: str, sources: int) -> tuple[str, str, str]:
    name = mechanism_name(module)
    heads = module.num_heads
    facts = [name, *([f"{heads} heads × {module.dim // heads}"] if heads > 1 else [f"width {module.dim}"])]
    window = getattr(module, "window", None)
    facts += [f"window {window}"] if isinstance(window, int) else []
    causal = getattr(module, "causal", False) is True
    return _attention(role, sources, causal), ", ".join(facts), "attention"


def mechanism_name(module: Mechanism) -> str:
    """The name of a mechanism in the registry, or that of its class."""
    return module.entry.name if hasattr(module, "entry") else words(type(module).__name__)


def _attention(role: str, sources: int, causal: bool) -> str:
    """Self- or cross-attention by what it reads; a part with a role of its own keeps that as its name."""
    if role not in _NO_ROLE:
        return role
    crossing = sources > 1 or role.startswith("cross")
    return "cross-attention" if crossing else "causal self-attention" if causal else "self-attention"


def _recurrent(cells: nn.RNNBase | nn.RNNCellBase, role: str) -> tuple[str, str, str]:
    name = cells.mode.split("_")[0] if isinstance(cells, nn.RNNBase) else type(cells).__name__.replace("Cell", " cell")
    label = name if role in _NO_ROLE or role == "recurrent" else f"{role}: {name}"
    facts = [f"{cells.input_size} → {cells.hidden_size}"]
    facts += ["both directions"] if getattr(cells, "bidirectional", False) else []
    facts += [f"{cells.num_layers} layers"] if getattr(cells, "num_layers", 1) > 1 else []
    return label, ", ".join(facts), "recurrent"


def _chain(linear: list[nn.Linear]) -> str:
    """128 → 512 → 128 for maps that follow each other."""
    widths: list[int] = []
    for layer in linear:
        if not widths:
            widths = [layer.in_features, layer.out_features]
        elif widths[-1] == layer.in_features:
            widths.append(layer.out_features)
    return " → ".join(map(str, widths))


def _size(module: Any) -> int:
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if shape else int(getattr(module, "num_features", 0) or module.num_channels)
