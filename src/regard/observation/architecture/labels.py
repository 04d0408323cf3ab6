"""What a module is called in a picture: a name, its sizes, and the kind that decides its colour."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from regard.nn.mechanism import Mechanism
from regard.nn.positions import PositionalEncoding

SILENT = (nn.Dropout, nn.Identity)  # nothing to see in evaluation
SIMPLE = (nn.Linear, nn.RNNBase, *SILENT)
NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)


def words(name: str) -> str:
    """A name of Python as words: FeedForward and feed_forward are "feed forward"."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.replace("_", " ")).strip()
    return apart if apart.isupper() else apart.lower()


def is_one_box(module: nn.Module) -> bool:
    """Whether a module is drawn as one box: a leaf, a mechanism, or a few linear or recurrent maps."""
    children = list(module.children())
    if not children:
        return True
    if isinstance(module, Mechanism):
        return not any(isinstance(part, Mechanism) for part in module.modules() if part is not module)
    return all(isinstance(child, SIMPLE) for child in children)


def described(module: nn.Module, path: str) -> tuple[str, str, str]:
    """Label, detail and kind of a module that is drawn as one box."""
    role = next((words(part) for part in reversed(path.split(".")) if not part.isdigit()), "")
    if isinstance(module, Mechanism):
        return _mechanism(module, role)
    if isinstance(module, PositionalEncoding):
        return f"{words(type(module).__name__)} positions", "", "embedding"
    if isinstance(module, NORMS):
        return words(type(module).__name__), str(_size(module)), "norm"
    if isinstance(module, nn.Embedding):
        return "embedding", f"{module.num_embeddings:,} × {module.embedding_dim}", "embedding"
    if isinstance(module, nn.Linear):
        return (
            role if role not in ("", "rows", "map") else "linear",
            f"{module.in_features} → {module.out_features}",
            "map",
        )
    recurrent = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return _recurrent(recurrent[0], role)
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    name = words(type(module).__name__)
    label = role if role and not role.startswith("around") else name
    return label, _chain(linear) or _numbers(module), "map"


def _mechanism(module: Mechanism, role: str) -> tuple[str, str, str]:
    name = module.entry.name if hasattr(module, "entry") else words(type(module).__name__)
    heads = module.num_heads
    facts = [f"{heads} heads of {module.dim // heads}" if heads > 1 else f"width {module.dim}"]
    window = getattr(module, "window", None)
    facts += [f"window {window}"] if isinstance(window, int) else []
    facts += ["causal"] if getattr(module, "causal", False) is True and name != "causal" else []
    shown = name if role in ("", "attention", "attentions", name) else f"{role}: {name}"
    return shown, ", ".join(facts), "attention"


def _recurrent(cells: nn.RNNBase, role: str) -> tuple[str, str, str]:
    both = ", both directions" if cells.bidirectional else ""
    layers = f", {cells.num_layers} layers" if cells.num_layers > 1 else ""
    name = f"{role}: {cells.mode.split('_')[0]}" if role and role != "cells" else cells.mode.split("_")[0]
    return name, f"{cells.input_size} → {cells.hidden_size}{both}{layers}", "recurrent"


def _chain(linear: list[nn.Linear]) -> str:
    """128 → 512 → 128 for maps that follow each other."""
    widths: list[int] = []
    for one in linear:
        if not widths:
            widths = [one.in_features, one.out_features]
        elif widths[-1] == one.in_features:
            widths.append(one.out_features)
    return " → ".join(map(str, widths))


def _numbers(module: nn.Module) -> str:
    count = sum(parameter.numel() for parameter in module.parameters())
    return f"{count:,} parameters" if count else ""


def _size(module: Any) -> int:
    shape = getattr(module, "normalized_shape", None)
    return int(shape[-1]) if shape else int(getattr(module, "num_features", 0) or module.num_channels)
