"""What `regard predict` finds for one text, as plain data: a completion, a translation, filled blanks or a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.errors import BadValue
from regard.observation import attribution
from regard.tasks.answers import Bits, HiddenTokens, Writes
from regard.tasks.batch import Batch
from regard.tasks.classify import Classify, Labelled
from regard.tasks.language import Language
from regard.tasks.parallel import Pair, ParallelTask
from regard.tasks.vocabulary import BLANK, SPECIAL, UNKNOWN, Vocabulary, whole_characters, words_of
from regard.tasks.windows import Window
from regard.training.loading import Loaded

Prediction = dict[str, Any]

COMPLETION = 100  # tokens, unless the caller says otherwise
GUESSES = 5  # for a hidden token
DIGITS = 5  # of a weight or a probability in JSON


@dataclass(frozen=True)
class Writing:
    """How sequences are written."""

    beam: int | None = None
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    max_length: int | None = None

    def options(self, device: torch.device) -> dict[str, Any]:
        """What `generate` takes, the length aside; every text draws from the seed anew."""
        if self.sample:
            generator = torch.Generator(device).manual_seed(self.seed)
            narrowing = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
            return {"method": "sample", "generator": generator, **narrowing}
        return {"method": "greedy"} if self.beam is None else {"method": "beam", "beam": self.beam}


def check(loaded: Loaded, writing: Writing) -> None:
    """Refuse a run that does not take text, and options that its answers have no use for."""
    task, problem = loaded.task, loaded.task.problem
    if not isinstance(task, (Language, ParallelTask, Classify)):
        what = "bits" if isinstance(problem.answer, Bits) else "numbers"
        raise BadValue(
            f"RUN: {loaded.config.task} reads {what}, not text, so there is nothing to predict from --text. "
            f"Measure it instead: regard evaluate {loaded.run}"
        )
    writes = problem.answer.writes
    if not writes and writing != Writing():
        raise BadValue(
            f"--beam, --sample, --max-length: they say how to write, and {loaded.config.model} on {loaded.config.task} "
            "writes nothing. Leave them out."
        )
    if isinstance(problem.answer, Writes) and (writing.max_length or 0) > problem.answer.length:
        raise BadValue(
            f"--max-length: this run writes at most {problem.answer.length} tokens, got {writing.max_length}."
        )


def answer(loaded: Loaded, text: str, writing: Writing) -> Prediction:
    """The answer to one text, with notes on how much of it was understood."""
    text = whole_characters(text)
    task = loaded.task
    example = task.parse({"text": text})
    if isinstance(task, ParallelTask):
        found = _translated(loaded, task, example, text.strip(), writing)
        notes = _notes(task.source_vocabulary, example.source, text.strip(), "first")
    elif isinstance(task, Classify):
        assert task.vocabulary is not None
        found = _classified(loaded, task, example, text.strip())
        notes = _notes(task.vocabulary, example.tokens, text.strip(), "first")
    else:
        assert isinstance(task, Language) and task.vocabulary is not None
        fills = isinstance(task.problem.answer, HiddenTokens)
        found = _filled(loaded, task, example) if fills else _completed(loaded, task, example, text, writing)
        notes = [] if fills else _notes(task.vocabulary, example.tokens.tolist(), text, "last")
    return {"text": text, **found, "notes": notes}


def _notes(vocabulary: Vocabulary, ids: Sequence[int], text: str, which: str) -> list[str]:
    found = []
    whole = len(vocabulary.encode(text))
    if whole > len(ids):
        found.append(f"only the {which} {len(ids):,} of {whole:,} pieces were read")
    unknown = sum(number == UNKNOWN for number in ids)
    if unknown:
        found.append(f"{unknown:,} of {len(ids):,} pieces are unknown to this run")
    return found


def _typed(vocabulary: Vocabulary, ids: Sequence[int], text: str) -> list[str]:
    """The pieces that were read as they were typed, unknown ones too where it is clear which they are."""
    if vocabulary.level in ("character", "word"):
        own = list(text) if vocabulary.level == "character" else words_of(text)
        if len(own) >= len(ids):
            return own[: len(ids)]
    return vocabulary.pieces(ids)


def _batch(loaded: Loaded, example: Any) -> Batch:
    return loaded.task.collate([example], torch.Generator()).to(loaded.device)


def _translated(loaded: Loaded, task: ParallelTask, example: Pair, text: str, writing: Writing) -> Prediction:
    batch = _batch(loaded, example)
    length = task.max_target if writing.max_length is None else writing.max_length
    (best, *_) = loaded.model.generate(batch, **writing.options(loaded.device), max_length=length)[0]
    seen: Prediction | None = None
    why = "nothing was written"
    tokens = best.tokens[:-1] if best.finished else best.tokens  # the end is no piece of the answer
    if tokens:
        targets = torch.tensor([best.tokens], device=loaded.device)
        found = attribution.alignment(loaded.model, batch.answered(targets))
        if isinstance(found, str):
            why = found
        else:
            seen = {
                "source": found.source,
                "rows": task.output_pieces(tokens),
                "columns": _typed(task.source_vocabulary, example.source, text),
                "weights": [_rounded(row) for row in found.weights[: len(tokens)].tolist()],
            }
    return {
        "kind": "translation",
        "output": task.decode(best.tokens),
        "tokens": best.tokens,
        "score": _number(best.score),
        "finished": best.finished,
        "alignment": seen,
        "no_alignment": None if seen else why,
    }


def _completed(loaded: Loaded, task: Language, example: Window, text: str, writing: Writing) -> Prediction:
    prompt: list[int] = example.tokens.tolist()
    length = COMPLETION if writing.max_length is None else writing.max_length
    options = writing.options(loaded.device)
    made: list[int] = []
    total = 0.0
    while len(made) < length:
        # The model learned from windows of `context` tokens: where prompt and text outgrow one, it moves on by halves.
        left = length - len(made)
        more = min(left, max(task.context - len(prompt) - len(made), task.context // 2))
        shown = [*prompt, *made][-(task.context - more) :]
        batch = Batch.of(torch.tensor([shown], device=loaded.device))
        (best, *_) = loaded.model.generate(batch, **options, max_length=more)[0]
        made += best.tokens
        total += best.score * len(best.tokens)
        if task.problem.answer.end is not None and best.finished:  # type: ignore[attr-defined]
            break
    output = task.decode(made)
    apart = task.level == "word" and not text[-1:].isspace() and not output.startswith("\n")
    return {
        "kind": "completion",
        "output": output,
        "whole": text + (" " if apart else "") + output,
        "tokens": made,
        "score": _number(total / max(1, len(made))),
    }


@torch.no_grad()
def _filled(loaded: Loaded, task: Language, example: Window) -> Prediction:
    places = (example.tokens == BLANK).nonzero().flatten().tolist()
    if not places:
        raise BadValue(
            f"--text: this run guesses hidden tokens. Write {SPECIAL[BLANK]} where one is hidden, for instance "
            f"'the {SPECIAL[BLANK]} of the king'."
        )
    odds = loaded.model(_batch(loaded, example))[0].float().softmax(-1).cpu()
    odds[:, : len(SPECIAL)] = 0  # no text holds a special token
    filled = example.tokens.clone()
    guesses = []
    for place in places:
        values, ids = odds[place].topk(min(GUESSES, odds.shape[1] - len(SPECIAL)))
        filled[place] = ids[0]
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        guesses.append([{"piece": task.decode([i]), "probability": _number(p)} for i, p in pairs])
    return {"kind": "filled", "output": task.decode(filled.tolist()), "guesses": guesses}


def _classified(loaded: Loaded, task: Classify, example: Labelled, text: str) -> Prediction:
    batch = _batch(loaded, example)
    with torch.no_grad():
        odds = loaded.model(batch)[0].float().softmax(-1).cpu()
    best = int(odds.argmax())
    found = attribution.input_attribution(loaded.model, batch, best)
    assert task.vocabulary is not None
    pieces = _typed(task.vocabulary, example.tokens, text)
    known = [number != UNKNOWN for number in example.tokens]
    rows = zip(pieces, known, _rounded(found.weights.tolist()), strict=True)
    return {
        "kind": "class",
        "output": task.decode([best]),
        "probabilities": {task.decode([n]): _number(p) for n, p in enumerate(odds.tolist())},
        "looked_at": {
            "source": found.source,
            "pieces": [{"piece": p, "known": k, "weight": w} for p, k, w in rows],
        },
    }


def _number(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _rounded(row: Sequence[float]) -> list[float]:
    return [_number(value) for value in row]
