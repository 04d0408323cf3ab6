"""What a trained run predicts for one input, as plain data: a text, filled blanks, a class, or any other answer.

How an input is read, what its positions are called and how an answer is written are the task's business; what kind of
prediction this is, the answer that the task asks for says (`Answer.kind`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import BadValue
from regard_workbench.inspection import attribution
from regard_workbench.inspection.attribution import Attribution
from regard_workbench.inspection.examples import numbered
from regard_workbench.tasks.answers import MadePicture
from regard_workbench.tasks.measures.alignments import attended_links, unusual_words
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.shown import Understood
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.text.vocabulary import SPECIAL
from regard_workbench.training.loading import Loaded

Prediction = dict[str, Any]

COMPLETION = 100  # tokens, unless the caller says otherwise
GUESSES = 5  # for a hidden token
DIGITS = 5  # significant, of a weight or a probability in JSON


@dataclass(frozen=True)
class Writing:
    """How sequences are generated."""

    beam: int | None = None
    length_penalty: float | None = None  # None: the task's own
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_length: int | None = None

    def options(self, device: torch.device) -> dict[str, Any]:
        """The options of `generate` apart from the length; sampling starts from the seed for every input."""
        if self.sample:
            generator = torch.Generator(device).manual_seed(self.seed)
            narrowing = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
            return {"method": "sample", "generator": generator, **narrowing}
        if self.beam is None:
            return {"method": "greedy"}
        penalty = {} if self.length_penalty is None else {"length_penalty": self.length_penalty}
        return {"method": "beam", "beam": self.beam, **penalty}


def check(loaded: Loaded, writing: Writing, typed: bool = True) -> None:
    """Refuse a typed input for a task that reads nothing of the kind, and options that do not apply to its answers."""
    task, answer = loaded.task, loaded.task.problem.answer
    if not task.takes and typed:
        reads = " and ".join(spec.words for spec in task.streams().values())
        raise BadValue(
            f"RUN: {loaded.config.task} reads {reads}, which cannot be typed. "
            f"Give --example 0 for one of the task's own, or measure it: regard evaluate {loaded.run}"
        )
    if not answer.writes and writing != Writing():
        raise BadValue(
            f"--beam, --sample, --max-length: they set how a sequence is generated, and {loaded.config.model} on "
            f"{loaded.config.task} generates none. Leave them out."
        )
    longest = getattr(answer, "length", None)
    if longest is not None and (writing.max_length or 0) > longest:
        raise BadValue(f"--max-length: this run writes at most {longest} tokens, got {writing.max_length}.")


def example_of(loaded: Loaded, given: Mapping[str, Any]) -> Any:
    """What the task makes of a typed input, or, of `{"example": 3}`, the example of that number in its test split."""
    if "example" not in given:
        return loaded.task.parse(given)
    example = numbered(loaded.task, given["example"])
    if loaded.task.problem.answer.kind == "completion":
        example = loaded.task.unanswered(example)
        if example is None:
            raise BadValue(f"--example: {loaded.config.model} continues a text that is typed. Give --text.")
    return example


def one_batch(loaded: Loaded, example: Any) -> Batch:
    """A batch of one example; an agent acts with the model."""
    return loaded.task.batch([example], [0], torch.Generator(), loaded.model).to(loaded.device)


def predict(loaded: Loaded, given: Mapping[str, Any], writing: Writing) -> Prediction:
    """The prediction for an input, `{"text": …}`, `{"image": path}`, `{"example": 3}`, and notes on what is unknown."""
    task, answer = loaded.task, loaded.task.problem.answer
    example = example_of(loaded, given)
    batch = one_batch(loaded, example)
    typed = "example" not in given
    read = task.understood(given, example) if typed else None
    if read is None:
        pieces = task.show(example, batch).pieces
        read = Understood(pieces, [True] * len(pieces))
    match answer.kind:
        case "translation":
            prediction = _written(loaded, batch, read, writing)
        case "completion":
            prediction = _continued(loaded, batch, given, example, writing)
        case "filled":
            prediction = _filled(loaded, batch)
        case "class":
            prediction = _classified(loaded, batch, example, read)
        case _:
            prediction = _answered(loaded, batch, example)
    words = {} if typed else {"words": task.show(example, batch).words}
    return {**given, **words, "kind": answer.kind, **prediction, "notes": read.notes}


def _written(loaded: Loaded, batch: Batch, read: Understood, writing: Writing) -> Prediction:
    """A sequence generated from the whole input, with its alignment."""
    task = loaded.task
    longest: int = task.problem.answer.length  # type: ignore[attr-defined]
    length = longest if writing.max_length is None else writing.max_length
    usual = task.problem.answer.decoding(writing.beam)
    options = {**usual, **writing.options(loaded.device), "max_length": length}
    (best, *_) = loaded.model.generate(batch, **options)[0]
    alignment_map: Prediction | None = None
    why = "nothing was written"
    tokens = best.tokens[:-1] if best.finished else best.tokens  # the end token is no piece of the answer
    if tokens:
        targets = torch.tensor([best.tokens], device=loaded.device)
        alignment = attribution.alignment(loaded.model, batch.answered(targets))
        if isinstance(alignment, str):
            why = alignment
        else:
            weights = alignment.weights[: len(tokens)]
            alignment_map = {
                "source": alignment.source,
                "rows": task.output_pieces(tokens),
                "columns": read.pieces,
                "weights": [_rounded(row) for row in weights.tolist()],
            }
            if isinstance(task.problem.inputs, Patches):
                alignment_map["grid"] = (task.problem.inputs.rows, task.problem.inputs.columns)
            if task.translates:
                alignment_map["null"] = _rounded((1 - weights.sum(1)).clamp(min=0).tolist())
                alignment_map["not_one_to_one"] = unusual_words(attended_links(weights), len(tokens))
    return {
        "output": task.decode(best.tokens),
        "tokens": best.tokens,
        "score": _number(best.score),
        "finished": best.finished,
        "alignment": alignment_map,
        "no_alignment": None if alignment_map else why,
    }


def _continued(loaded: Loaded, batch: Batch, given: Mapping[str, str], example: Any, writing: Writing) -> Prediction:
    """The input continued, token by token."""
    task = loaded.task
    prompt: list[int] = batch.inputs[0].tolist()
    context = task.problem.inputs.length
    assert context is not None, "what continues an input knows how long one may be"
    length = COMPLETION if writing.max_length is None else writing.max_length
    if writing.max_length is None and getattr(task.problem.answer, "end", None) is not None:
        length = max(1, min(length, context - len(prompt)))  # a reply is no longer than those that were learned
    options = writing.options(loaded.device)
    new_tokens: list[int] = []
    total = 0.0
    while len(new_tokens) < length:
        # The model was trained on windows of `context` tokens: a longer text is continued from its last half window.
        left = length - len(new_tokens)
        more = min(left, max(context - len(prompt) - len(new_tokens), context // 2))
        window = [*prompt, *new_tokens][-(context - more) :]
        shown = Batch.of(torch.tensor([window], device=loaded.device))
        (best, *_) = loaded.model.generate(shown, **options, max_length=more)[0]
        new_tokens += best.tokens
        total += best.score * len(best.tokens) ** (1.0 if writing.length_penalty is None else writing.length_penalty)
        if getattr(task.problem.answer, "end", None) is not None and best.finished:
            break
    output = task.decode(new_tokens)
    return {
        "output": output,
        "whole": task.continued(given.get("text", ""), output),
        "tokens": new_tokens,
        "score": _number(total / max(1, len(new_tokens))),
        "attention": _continuation(loaded, batch, example, new_tokens),
    }


def _continuation(loaded: Loaded, batch: Batch, example: Any, made: list[int]) -> Prediction | None:
    """What each written token attended to, where what is written has an end of its own: a reply, not a book."""
    task, ends = loaded.task, getattr(loaded.task.problem.answer, "end", None)
    if not made or ends is None:
        return None
    written = torch.tensor([made], device=loaded.device)
    full = Batch.of(torch.cat([batch.inputs, written], 1))
    if full.inputs.shape[1] > (task.problem.inputs.length or 0):  # not all of it was read at once
        return None
    attended = attribution.continuation(loaded.model, full, len(made))
    if isinstance(attended, str):
        return None
    pieces = task.output_pieces([token for token in made if token != ends])
    columns = task.show(example, full).pieces
    weights = [_rounded(row) for row in attended.weights[: len(pieces)].tolist()]
    return {"source": attended.source, "rows": pieces, "columns": columns, "weights": weights}


@torch.no_grad()
def _filled(loaded: Loaded, batch: Batch) -> Prediction:
    """Guesses for the hidden tokens of the input."""
    task, ids = loaded.task, batch.inputs[0].cpu()
    ids = ids[:, 0] if ids.dim() > 1 else ids  # a word comes with its parts
    blank: int = task.problem.answer.blank  # type: ignore[attr-defined]
    hidden = (ids == blank).nonzero().flatten().tolist()
    if not hidden:
        raise BadValue(
            f"--text: this run guesses hidden tokens. Write {SPECIAL[blank]} where one is hidden, for instance "
            f"'the {SPECIAL[blank]} of the king'."
        )
    odds = loaded.model(batch)[0].float().softmax(-1).cpu()
    odds[:, : len(SPECIAL)] = 0  # no text holds a special token
    filled = ids.clone()
    guesses = []
    for index in hidden:
        values, best = odds[index].topk(min(GUESSES, odds.shape[1] - len(SPECIAL)))
        filled[index] = best[0]
        pairs = zip(best.tolist(), values.tolist(), strict=True)
        guesses.append([{"piece": task.decode([i]), "probability": _number(p)} for i, p in pairs])
    return {"output": task.decode(filled.tolist()), "guesses": guesses}


def _classified(loaded: Loaded, batch: Batch, example: Any, read: Understood) -> Prediction:
    """The class of the input, and the weight of each of its positions."""
    task = loaded.task
    with torch.no_grad():
        odds = loaded.model(batch)[0].float().softmax(-1).cpu()
    best = int(odds.argmax())
    attributed = attribution.input_attribution(loaded.model, batch, best)
    count = attributed.weights.shape[-1]
    if count != len(read.pieces):  # the model cuts the input in its own way, and may put a class token before it
        pieces = loaded.model.relabel(task.show(example, batch)).pieces[-count:]
        read = Understood(pieces, [True] * len(pieces), read.notes)
    return {
        "output": task.decode([best]),
        "probabilities": {task.decode([n]): _number(p) for n, p in enumerate(odds.tolist())},
        "looked_at": _looked_at(attributed, read.pieces, read.known),
    }


@torch.no_grad()
def _answered(loaded: Loaded, batch: Batch, example: Any) -> Prediction:
    """Any other answer, as its head predicts it and its task writes it."""
    (predicted,) = loaded.model.predict(loaded.model(batch), batch)
    shown = loaded.model.relabel(loaded.task.show(example, batch))
    attended = attribution.looked_at(loaded.model, batch, shown)
    return {
        "attention": _between(loaded, predicted, example),
        "picture": _picture(loaded, predicted, example, batch),
        "output": loaded.task.answer_text(predicted, example),
        "predicted": predicted,
        "looked_at": None if attended is None else _looked_at(attended, shown.pieces, [True] * len(shown.pieces)),
    }


def _picture(loaded: Loaded, predicted: Any, example: Any, batch: Batch) -> list[list[float]] | None:
    """The brightness of each pixel of a picture that was made, row by row; None for other answers."""
    if not isinstance(loaded.task.problem.answer, MadePicture):
        return None
    picture = loaded.task.show(loaded.task.marked(example, predicted), batch).picture
    assert picture is not None, "a task whose answer is a picture shows it"
    grey = picture if picture.ndim == 2 else picture.mean(2)
    return [_rounded(row) for row in grey.tolist()]


def _between(loaded: Loaded, predicted: Any, example: Any) -> Prediction | None:
    """What attended to what, where the model has rows that are no positions of its input."""
    if not loaded.model.sides:
        return None
    example = loaded.task.focused(example, predicted)
    batch = one_batch(loaded, example)
    shown = loaded.model.relabel(loaded.task.show(example, batch))
    attended = attribution.between(loaded.model, batch, shown)
    if attended is None:
        return None
    weights = [_rounded(row) for row in attended.weights.tolist()]
    return {
        "source": f"{attended.source}, mean over heads",
        "rows": attended.rows,
        "columns": attended.columns,
        "weights": weights,
        "grid": shown.grid,  # rows and columns of a picture's patches: too many for lines of text
    }


def _looked_at(seen: Attribution, pieces: Sequence[str], known: Sequence[bool]) -> dict[str, Any]:
    readings = seen.weights if seen.rows else seen.weights[None]  # several, where the input is read again and again
    rows = zip(pieces, known, _rounded(readings.mean(0).tolist()), strict=True)
    described: dict[str, Any] = {
        "source": seen.source,
        "pieces": [{"piece": p, "known": k, "weight": w} for p, k, w in rows],
    }
    if seen.rows:
        described["readings"] = [_rounded(row) for row in readings.tolist()]
    return described


def _number(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _rounded(row: Sequence[float]) -> list[float]:
    return [_number(value) for value in row]
