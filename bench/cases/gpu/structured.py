"""Masks, biases and scores with structure, against FlexAttention, and `varlen_attn` where it can be told the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.cases.gpu.compare import register
from bench.cases.gpu.peers import FLEX, TUNED, VARLEN
from bench.cases.gpu.work import SHORT_64, SHORT_128, SIZES, Modifier, Size, Work
from regard import biases, masks, scores

WINDOW, GLOBAL, CAP = 512, 16, 30.0  # keys a query sees, positions that see and are seen by all, softcap


def _window_of(size: Size) -> int:
    return min(WINDOW, size.length // 2)


def _sequences(size: Size) -> list[int]:
    return [size.length * number for number in range(size.batch + 1)]


def causal_mask(size: Size, device: str) -> Modifier:
    """Itself and what came before."""
    return lambda b, h, q, k: q >= k


def _window_mask(size: Size, device: str) -> Modifier:
    window = _window_of(size)
    return lambda b, h, q, k: (q >= k) & (q - k < window)


def _global_mask(size: Size, device: str) -> Modifier:
    window = _window_of(size)
    return lambda b, h, q, k: ((q >= k) & (q - k < window)) | (q < GLOBAL) | (k < GLOBAL)


def _softcap_score(size: Size, device: str) -> Modifier:
    return lambda score, b, h, q, k: CAP * torch.tanh(score / CAP)


def _slopes(size: Size, device: str) -> Tensor:
    return torch.tensor(biases.alibi_slopes(size.heads), device=device)


def _alibi_score(size: Size, device: str) -> Modifier:
    slopes = _slopes(size, device)
    return lambda score, b, h, q, k: score - slopes[h] * (q - k)


def _alibi_of_one_head(size: Size, device: str, head: int) -> dict[str, Any]:
    place = torch.arange(size.length, device=device, dtype=torch.float64)
    steepness = float(biases.alibi_slopes(size.heads)[head])
    return {"mask": masks.causal(), "bias": -steepness * (place[:, None] - place).abs()}


def prefix_of(size: Size) -> int:
    """The length of the part that everyone sees."""
    return size.length // 4


def _prefix_mask(size: Size, device: str) -> Modifier:
    shared = prefix_of(size)
    return lambda b, h, q, k: (q >= k) | (k < shared)


def document_ends(size: Size) -> list[int]:
    """Where documents of rather different lengths end, laid end to end: eight, from a fortieth to a quarter."""
    shares = (0.025, 0.1, 0.2, 0.05, 0.25, 0.075, 0.15, 0.15)
    ends = [0]
    for number in range(1, len(shares)):
        ends.append(max(ends[-1] + 1, round(size.length * sum(shares[:number]))))
    return [*ends, size.length]


def _document_ids(size: Size, device: str) -> Tensor:
    ends = torch.tensor(document_ends(size)[1:], device=device)
    return torch.bucketize(torch.arange(size.length, device=device), ends, right=True)


def _document_mask(size: Size, device: str) -> Modifier:
    ids = _document_ids(size, device)
    return lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)


def _every_document(size: Size) -> tuple[dict[str, Any], list[int]]:
    own = document_ends(size)
    return {"window_size": (-1, 0)}, [0, *(size.length * entry + end for entry in range(size.batch) for end in own[1:])]


def _window_options(size: Size, device: str) -> dict[str, Any]:
    return {"mask": masks.window(_window_of(size) - 1, 0)}


SPARSE = (
    Work(
        "window",
        f"causal window of {WINDOW} keys",
        _window_options,
        mask=_window_mask,
        varlen=lambda size: ({"window_size": (_window_of(size) - 1, 0)}, _sequences(size)),
        against=(FLEX, VARLEN),
    ),
    Work(
        "global",
        f"causal window of {WINDOW} keys and {GLOBAL} global tokens",
        lambda size, device: {"mask": masks.window(_window_of(size) - 1, 0) | masks.global_tokens(range(GLOBAL))},
        mask=_global_mask,
        against=(FLEX,),
    ),
    Work(
        "softcap",
        f"softcap {CAP:g}, causal",
        lambda size, device: {"score": scores.softcap(CAP), "mask": masks.causal()},
        mask=causal_mask,
        score=_softcap_score,
        against=(FLEX,),
    ),
)

STRUCTURED = (
    Work(
        "alibi",
        "ALiBi, causal",
        lambda size, device: {"bias": biases.alibi(size.heads), "mask": masks.causal()},
        _alibi_of_one_head,
        mask=causal_mask,
        score=_alibi_score,
        against=(FLEX,),
    ),
    Work(
        "prefix",
        "causal after a shared prefix of a quarter",
        lambda size, device: {"mask": masks.causal() | masks.prefix(prefix_of(size))},
        mask=_prefix_mask,
        against=(FLEX,),
    ),
    Work(
        "documents",
        "eight documents end to end, causal",
        lambda size, device: {"mask": masks.causal() & masks.documents(_document_ids(size, device))},
        mask=_document_mask,
        varlen=_every_document,
        against=(FLEX,),
    ),
)

BARS = {  # forward, forward+backward
    "window": (1.3, 1.25),
    "global": (1.3, 1.3),
    "softcap": (2.0, 2.0),
    "alibi": (1.2, 1.2),
    "prefix": (1.15, 1.15),
    "documents": (1.0, 1.1),
}
WINDOW_D64 = 1.5  # forward+backward

for _work in (*SPARSE, *STRUCTURED):
    for _size in SIZES:
        _forward, _train = BARS[_work.name]
        _narrow = _work.name == "window" and _size.width == 64
        register(_work, _size, bar=_forward, train_bar=WINDOW_D64 if _narrow else _train, faster=True)

# cuDNN has a sliding window of its own, for which torch has no argument: an earlier measurement through JAX is quoted.
CUDNN_WINDOW = {64: {"forward": 0.157, "train": 0.586}, 128: {"forward": 0.205, "train": 0.869}}  # ms
_QUOTED = "; cuDNN's own window: {} ms (quoted, not measured)"
_AUTOTUNED = replace(SPARSE[0], name="autotuned-window", against=(TUNED, FLEX, VARLEN))
for _size in (SHORT_128, SHORT_64):
    _remarks = {ending: _QUOTED.format(took) for ending, took in CUDNN_WINDOW[_size.width].items()}
    register(
        _AUTOTUNED,
        _size,
        bar=1.3,
        train_bar=WINDOW_D64 if _size.width == 64 else 1.25,
        faster=True,
        remarks=_remarks,
        by_name=True,
    )
