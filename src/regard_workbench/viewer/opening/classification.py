"""The answer of a classifier in words, which the page shows beside the attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard_workbench.tasks.parts.task import Task
from regard_workbench.viewer.page_model import finite, shortened

Answer = dict[str, Any]  # "text": the answer; "others": [[label, probability], …], the most likely first
OTHERS = 5  # further labels that are listed
TOLD = 8  # labelled tokens that are listed
LIKELY = 0.5  # the probability from which a label counts as given
OUTSIDE = ("O", "LABEL_0")  # labels of tokens outside any entity


def classes(logits: Tensor, name: Callable[[int], str]) -> Answer:
    """One of several classes, from logits (classes,)."""
    return _ranked(logits.float().softmax(-1), name, 1)


def labels(logits: Tensor, name: Callable[[int], str]) -> Answer:
    """Any number of labels, each with a probability of its own, from logits (labels,)."""
    odds = logits.float().sigmoid()
    count = int((odds >= LIKELY).sum())
    answer = _ranked(odds, name, count)
    return answer if count else {**answer, "text": f"none of {len(odds)} labels"}


def number(value: Tensor, name: str) -> Answer:
    """A score, from a model with one output."""
    score = finite(value)
    text = "not finite" if score is None else f"{shortened(name)} {score:.4g}".strip()
    return {"text": text, "others": []}


def tokens(logits: Tensor, name: Callable[[int], str], pieces: Sequence[str]) -> Answer:
    """A label for each token, from logits (tokens, labels); tokens outside any entity are left out."""
    odds, best = logits.float().softmax(-1).max(-1)
    marked = [
        f"{shortened(piece.strip(), 24)} {shortened(name(label))} {percent(share)}"
        for piece, label, share in zip(pieces, best.tolist(), odds.tolist(), strict=False)
        if name(label) not in OUTSIDE
    ]
    more = f", … {len(marked) - TOLD} more" if len(marked) > TOLD else ""
    return {"text": ", ".join(marked[:TOLD]) + more if marked else "no token is labelled", "others": []}


def of_pretrained(model: Any, pieces: Sequence[str]) -> Callable[[Any], Answer | None] | None:
    """How to read the answer from the output of a Hugging Face classifier; None for other models."""
    config, kind = model.config, type(model).__name__
    if "Classification" not in kind:
        return None

    def name(label: int) -> str:
        return str((getattr(config, "id2label", None) or {}).get(label, label))

    def read(output: Any) -> Answer | None:
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() not in (2, 3) or not logits.shape[-1]:
            return None
        logits = logits[0].detach().cpu()
        if logits.dim() == 2:
            return tokens(logits, name, pieces) if "TokenClassification" in kind else None
        problem = getattr(config, "problem_type", None)
        if problem == "multi_label_classification":
            return labels(logits, name)
        if problem == "regression" or len(logits) == 1:
            return number(logits[0], "" if name(0) == "LABEL_0" else name(0)) if len(logits) == 1 else None
        return classes(logits, name)

    return read


def of_run(task: Task) -> Callable[[Any], Answer | None]:
    """How to read the answer from the outputs of a run's model; it reads None where that is no classification."""

    def read(outputs: Any) -> Answer | None:
        odds = task.problem.answer.probabilities(outputs)
        if odds is None:
            return None
        return _ranked(odds[0].detach().cpu(), lambda label: task.decode([label]), 1)

    return read


def percent(share: float) -> str:
    """A probability with one decimal, which separates close labels and near-certain ones."""
    return f"{100 * share:.1f} %"


def _ranked(odds: Tensor, name: Callable[[int], str], given: int) -> Answer:
    """The first `given` labels as the answer, and some of the others."""
    if not torch.isfinite(odds).all():
        return {"text": "not finite", "others": []}
    shares, best = odds.sort(descending=True, stable=True)
    ranked = [(shortened(name(label)), share) for label, share in zip(best.tolist(), shares.tolist(), strict=True)]
    text = ", ".join(f"{label} {percent(share)}" for label, share in ranked[:given])
    return {"text": text, "others": [[label, float(f"{share:.4g}")] for label, share in ranked[given : given + OTHERS]]}
