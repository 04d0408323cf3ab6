"""An example of each mask, score, bias and normaliser as code, and its picture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import regard
from regard.nn import positions
from regard_workbench.cli.common.catalogue import Item
from regard_workbench.cli.show.toy import PATH, POSITIONS, SHOWN_HEADS, WIDTH, Picture, path, seeded, sharpest

# Values that need arguments. One that is missing here has a page without a picture.
WRITTEN = {
    "masks.window": "masks.window(3, after=1)",
    "masks.lengths": "masks.lengths(torch.tensor([11]))",
    "masks.padding": "masks.padding(torch.arange(17)[None] >= 5)",
    "masks.documents": "masks.documents(torch.arange(17) // 6)",
    "masks.packed": "masks.packed([0, 3, 10, 17])",
    "masks.prefix": "masks.causal() | masks.prefix(5)",
    "masks.blocks": "masks.blocks(4)",
    "masks.dilated": "masks.dilated(3)",
    "masks.global_tokens": "masks.window(1) | masks.global_tokens([0, 8])",
    "masks.dense": "masks.dense(torch.arange(17)[:, None] * torch.arange(17) % 5 < 2)",
    "biases.alibi": "biases.alibi(4)",
    "biases.relative": "biases.relative(torch.linspace(-3.0, 3.0, 9)[None])",
    "biases.t5": "biases.t5(-(torch.arange(32.0) % 16)[:, None] / 3)",
    "biases.gaussian": "biases.gaussian(torch.linspace(13.0, 3.0, 17)[None, None], 2.0)",
    "biases.dense": "biases.dense(torch.arange(17.0).sin() * 2)",
    "scores.softcap": "scores.softcap(5.0)",
    "scores.general": "scores.general(-torch.eye(64))",
    "scores.additive": "scores.additive(-torch.ones(64))",
    "scores.concat": "scores.concat(torch.eye(64), torch.eye(64), -torch.ones(64))",
    "scores.cosine": "scores.cosine(5.0)",
    "scores.shaw": "scores.shaw(torch.linspace(-1, 1, 9)[:, None].expand(9, 64))",
    "scores.transformer_xl": (
        "scores.transformer_xl(torch.zeros(64), torch.full((64,), 0.05), "
        "torch.linspace(-1, 1, 9)[:, None].expand(9, 64))"
    ),
}
TABLE_WIDTH = 16  # columns of a table of positions
_EQUAL = "all scores are equal before the bias, so that only the bias shows"


def of(item: Item) -> tuple[str, Picture] | None:
    """The example of a value as text, and its picture; None where there is nothing to draw."""
    if item.kind == "positions":
        return _positions(item)
    if item.kind not in _DRAWN:
        return None
    name = f"{item.kind}.{item.name}"
    text = WRITTEN.get(name) or (f"{name}()" if item.call.endswith("()") or name == "masks.causal" else "")
    if not text:
        return None
    value = eval(text, {"torch": torch, **{kind: getattr(regard, kind) for kind in _DRAWN}})  # only code from this file
    return text, _DRAWN[item.kind](value)


def _positions(item: Item) -> tuple[str, Picture] | None:
    """The table that is added to embeddings, or the weights among equal rows where attention itself knows positions."""
    with seeded():
        if item.name in positions.names():
            table = positions.build(item.name, TABLE_WIDTH, POSITIONS)(torch.zeros(1, POSITIONS, TABLE_WIDTH))
            if not table.any():
                return None
            text = f'positions.build("{item.name}", dim={TABLE_WIDTH}, max_length={POSITIONS})'
            return text, Picture("table", [table[0].detach().double()], [])
        text = f'nn.build("multihead", dim={WIDTH}, num_heads={SHOWN_HEADS}, positions="{item.name}")'
        layer = regard.nn.build("multihead", dim=WIDTH, num_heads=SHOWN_HEADS, positions=item.name)
        weights = layer.weights(torch.randn(1, 1, WIDTH).expand(1, POSITIONS, WIDTH)).detach()
    return text, Picture("weights", _heads(weights), ["all rows are equal, so that only positions show"])


def _mask(mask: Any) -> Picture:
    return Picture("mask", _heads(mask.dense(POSITIONS, POSITIONS).double()), [])


def _bias(bias: Any) -> Picture:
    heads = getattr(bias, "num_heads", 1)
    nothing = torch.zeros(1, heads, POSITIONS, 1)
    return Picture("weights", _heads(regard.weights(nothing, nothing, bias=bias)), [_EQUAL])


def _on_path(**piece: Any) -> Picture:
    def weights(rows: Tensor) -> Tensor:
        rows = rows[:, None].float()
        return regard.weights(rows, rows, **piece)

    sharp_weights = sharpest(weights)
    assert sharp_weights is not None
    return Picture("weights", _heads(sharp_weights), [PATH])


def _score(score: Any) -> Picture:
    return _on_path(score=score)


def _normalizer(normalizer: Any) -> Picture:
    rows = path(gain=0.8)[:, None].float()
    weights = regard.weights(rows, rows, normalize=normalizer)
    return Picture("weights", _heads(weights), [PATH, "scores are q·k / √d"])


def _heads(found: Tensor) -> list[Tensor]:
    return list(found[0, :SHOWN_HEADS])


_DRAWN = {"masks": _mask, "biases": _bias, "scores": _score, "normalizers": _normalizer}
