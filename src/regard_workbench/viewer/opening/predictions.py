"""The answer of a model that writes or fills in tokens, in words with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from regard_workbench.viewer.opening.classification import OTHERS, TOLD, Answer, percent
from regard_workbench.viewer.page_model import shortened

Piece = Callable[[int], str]  # the label of a token
LONGEST = 36  # characters of a written text that are repeated in its answer


def next_token(logits: Tensor, piece: Piece) -> Answer:
    """The most likely next token, from logits (vocabulary,)."""
    odds = logits.float().softmax(-1)
    if not odds.isfinite().all():
        return {"text": "not finite", "others": []}
    shares, best = odds.topk(min(OTHERS + 1, len(odds)))
    names = [quoted(piece(token)) for token in best.tolist()]
    alternatives = [[name, float(f"{share:.4g}")] for name, share in zip(names[1:], shares[1:].tolist(), strict=True)]
    return {"text": f"next {names[0]} {percent(float(shares[0]))}", "others": alternatives}


def hidden_places(ids: Sequence[int], blank: int | None) -> list[tuple[int, str]]:
    """Where tokens are hidden, in words."""
    places = [number for number, token in enumerate(ids) if token == blank]
    return [(number, f"hidden token {count}") for count, number in enumerate(places, 1)]


def hidden_tokens(logits: Tensor, ids: Sequence[int], blank: int | None, piece: Piece) -> Answer | None:
    """The most likely token at each blank, from logits (tokens, vocabulary); None where nothing is hidden."""
    places = [number for number, token in enumerate(ids) if token == blank]
    if not places:
        return None
    if len(places) == 1:
        answer = next_token(logits[places[0]], piece)
        return {**answer, "text": answer["text"].replace("next ", "hidden ", 1)}
    odds, best = logits[places].float().softmax(-1).max(-1)
    guesses = [
        f"{quoted(piece(token))} {percent(share)}" for token, share in zip(best.tolist(), odds.tolist(), strict=True)
    ]
    return {"text": "hidden " + ", ".join(guesses[:TOLD]), "others": []}


def written(logits: Tensor, ids: Sequence[int], text: str, piece: Piece) -> Answer | None:
    """A text with its probability, from logits (tokens, vocabulary) of each token given those before it."""
    if logits.dim() != 2 or len(logits) < len(ids) or not ids:
        return None
    odds = logits[: len(ids)].float().log_softmax(-1)
    logs = [float(odds[place, token]) for place, token in enumerate(ids)]
    return _of_tokens(text, logs, [piece(token) for token in ids])


def generated(steps: Sequence[dict[str, Any]]) -> Answer | None:
    """A text that was generated step by step, from the page's data of the steps."""
    shares = [step["probability"] for step in steps]
    if not steps or any(not share for share in shares):
        return None
    pieces = [str(step["token"]) for step in steps]
    return _of_tokens("".join(pieces).replace("▁", " "), [math.log(share) for share in shares], pieces)


def quoted(piece: str) -> str:
    """A token in quotation marks; its spaces stay visible."""
    return f"“{shortened(piece, 40)}”"


def _of_tokens(text: str, logs: Sequence[float], pieces: Sequence[str]) -> Answer | None:
    """The product of the probabilities shrinks with the length, so the mean of each token is told, too."""
    total = sum(logs)
    if not math.isfinite(total):
        return {"text": "not finite", "others": []}
    per_token = f" ({percent(math.exp(total / len(logs)))} per token)" if len(logs) > 1 else ""
    token_shares = [[quoted(piece), float(f"{math.exp(log):.4g}")] for piece, log in zip(pieces, logs, strict=True)]
    return {
        "text": f"“{shortened(text.strip(), LONGEST)}” {_share(math.exp(total))}{per_token}",
        "others": token_shares,
    }


def _share(probability: float) -> str:
    """A probability, also a small one, without powers of ten."""
    if probability >= 0.0005:
        return percent(probability)
    return f"{100 * probability:.2g} %" if probability >= 1e-6 else "below 0.0001 %"
