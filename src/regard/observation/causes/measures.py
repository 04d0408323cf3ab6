"""What an intervention is measured by: a logit, a logit difference, a loss or a probability of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadType, BadValue, unknown_name
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import parts_of_output
from regard.support.arguments import described, whole_number

KINDS = ("logit", "loss", "probability")
NO_CLASS = ("multi_label_classification", "regression")  # problem types of Hugging Face's classifiers
Answer = int | Sequence[int] | Tensor | None
Words = Callable[[int], str]  # the text of a class or token
Measured = str | Callable[[Any], Any]
SMALL = 0.01  # a difference of two runs, relative to the larger measure: too small to be shared out
ROUNDING = 1e-6  # the same for a function, whose zero and scale are the user's


@dataclass(frozen=True)
class Measure:
    """A number for each copy of the examples in one batch: the mean over the examples of the copy."""

    words: str  # in words: "logit of 5 − logit of 9 at the last position"
    function: Callable[[Any], Any] | None = None  # of the output of one copy
    kind: str = "logit"
    answer: Tensor | None = None  # (b,): class or token ids
    other: Tensor | None = None
    position: int = -1
    same_answer: bool = False  # whether it is the answer of both runs, for every example

    def doubt(self, clean: float, corrupted: float) -> str:
        """Why parts of the difference between two runs say nothing about the answer; empty where they do."""
        if self.same_answer:
            return "both inputs have the same answer, so there is no difference between two answers to share out"
        between = f"{corrupted:.4g} for the corrupted input, {clean:.4g} for the clean one"
        least = (SMALL if self.function is None else ROUNDING) * max(abs(clean), abs(corrupted))
        if abs(clean - corrupted) <= least:
            return f"the difference is too small to share out: {between}"
        if self.function is None and (clean < corrupted) != (self.kind == "loss"):
            return f"the difference has the wrong sign: the corrupted input fits the answer better, {between}"
        return ""

    def each(self, output: Any, count: int, batch: int) -> Tensor:
        """One number for each of `count` copies, float64."""
        if self.function is None:
            return self.tensor(output, count, batch).detach().double().cpu()
        measures = [self.function(output_copy) for output_copy in parts_of_output(output, count, batch)]
        for measured in measures:
            if isinstance(measured, Tensor) and measured.numel() != 1:
                raise BadValue(f"measure: expected one number, got {described(measured)}.")
        return torch.tensor([float(measured) for measured in measures], dtype=torch.float64)

    def tensor(self, output: Any, count: int, batch: int) -> Tensor:
        """The same as a tensor that gradients can be taken of; only for measures of an answer."""
        assert self.answer is not None
        logits = logits_of(output)
        rows = at_position(logits, self.position)
        if len(rows) != count * batch:
            raise BadValue(f"measure: expected logits of {count * batch} examples, got {tuple(logits.shape)}.")
        rows = rows if self.kind == "logit" else rows.log_softmax(-1)

        def of(ids: Tensor) -> Tensor:
            every = ids.to(rows.device).repeat(count)[:, None]
            return rows.gather(-1, every).view(count, batch)

        numbers = of(self.answer)
        if self.other is not None:
            numbers = numbers - of(self.other)
        if self.kind == "probability":
            numbers = numbers.exp()
        return -numbers.mean(1) if self.kind == "loss" else numbers.mean(1)


def answers_with_a_class(model: nn.Module) -> bool:
    """Whether a model's outputs are logits of one class or token among several; True where nothing says otherwise."""
    scored = getattr(getattr(getattr(model, "problem", None), "answer", None), "scored", None)
    if isinstance(scored, bool):  # a model of the workbench says it
        return scored
    config = getattr(model, "config", None)
    alone = "Classification" in type(model).__name__ and getattr(config, "num_labels", 2) == 1
    return not alone and getattr(config, "problem_type", None) not in NO_CLASS


def check_classes(model: nn.Module, measure: Measured, answer: Answer) -> None:
    """Refuse a measure of a class where outputs are bits or numbers; the logit of one output may be asked for."""
    asks = isinstance(measure, str) and (answer is None or measure != "logit")
    if asks and not answers_with_a_class(model):
        raise BadValue(
            f"measure: the outputs of {type(model).__name__} are numbers or bits on their own, not logits of one class "
            'among several. Choose one output (measure="logit", answer=3), or pass measure=lambda output: …, a number.'
        )


def at_position(logits: Tensor, position: int) -> Tensor:
    """Logits (b,classes) of an answer: of all of (b,classes), or of one position of (b,n,classes)."""
    if logits.dim() == 2:
        return logits
    if logits.dim() != 3:
        raise BadValue(
            f"measure: expected logits (b,classes) or (b,positions,classes), got {described(logits)}. "
            "Pass measure=lambda output: …, a number."
        )
    if not -logits.shape[1] <= position < logits.shape[1]:
        raise BadValue(f"position: expected a number below {logits.shape[1]}, got {position}.")
    return logits[:, position]


def measure_of(
    measure: Measured,
    answer: Answer,
    other: Answer,
    position: int,
    clean: Any,
    corrupted: Any = None,
    batch: int = 1,
    words: Words | None = None,
) -> Measure:
    """The measure of an intervention.

    Without an answer, it is what the model says for `clean`; without another, what it says for `corrupted`, where that
    is something else (None: only the answer's own logit).
    """
    if callable(measure):
        if answer is not None or other is not None:
            raise BadValue("measure: expected a function of the output, or an answer, got both.")
        named = getattr(measure, "__name__", "measure").replace("<lambda>", "measure").replace("_", " ")
        return Measure(named, measure)
    if not isinstance(measure, str):
        raise BadType(f"measure: expected one of {', '.join(KINDS)} or a function, got {described(measure)}.")
    if measure not in KINDS:
        raise unknown_name("measure", measure, KINDS)
    position = whole_number("position", position)
    rows = at_position(_logits(clean), position)
    right = rows.argmax(-1).cpu() if answer is None else _ids("answer", answer, batch, rows.shape[-1])
    wrong = None if other is None else _ids("other", other, batch, rows.shape[-1])
    same_answer = False
    if other is None and answer is None and corrupted is not None:
        equal = (answered := at_position(logits_of(corrupted), position).argmax(-1).cpu()) == right
        same_answer = bool(equal.all())
        wrong = answered if measure == "logit" and not bool(equal.any()) else None
    label = f"{measure} of {_told(right, words)}"
    if wrong is not None and measure == "logit":
        label += f" − {measure} of {_told(wrong, words)}"
    where = f" at {_place(position)}" if logits_of(clean).dim() == 3 else ""
    wrong = wrong if measure == "logit" else None
    return Measure(label + where, None, measure, right, wrong, position, same_answer)


def _logits(output: Any) -> Tensor:
    try:
        return logits_of(output)
    except BadValue:
        raise BadValue(
            "measure: there are no logits in the model's output. Pass measure=lambda output: …, a number."
        ) from None


def _told(ids: Tensor, words: Words | None) -> str:
    ids_listed = ids.tolist()
    if len(set(ids_listed)) > 1:
        return "each example's answer"
    return str(ids_listed[0]) if words is None else f"“{words(ids_listed[0])}”"


def _place(position: int) -> str:
    return "the last position" if position == -1 else f"position {position}"


def _ids(argument: str, given: Answer, batch: int, classes: int) -> Tensor:
    ids = torch.as_tensor(given).flatten().cpu()
    if ids.dtype.is_floating_point or ids.dtype == torch.bool:
        raise BadType(f"{argument}: expected the number of a class or token, got {described(given)}.")
    ids = ids.long().expand(batch) if len(ids) == 1 else ids.long()
    if len(ids) != batch:
        raise BadValue(f"{argument}: expected one for each of {batch} examples, got {len(ids)}.")
    if int(ids.min()) < 0 or int(ids.max()) >= classes:
        raise BadValue(f"{argument}: expected numbers from 0 to {classes - 1}, got {ids.tolist()[:8]}.")
    return ids
