"""A stage from a wish: every variant opened and run once under observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.errors import BadValue
from regard.observation.observe import observe
from regard.viewer.opening.absent import no_model
from regard.viewer.opening.aligned import alignment, read_gold_line
from regard.viewer.opening.guarding import in_words
from regard.viewer.opening.mattering import importance
from regard.viewer.opening.pretrained import is_pretrained, open_pretrained
from regard.viewer.opening.runs import checkpoint_steps, is_run, losses, open_run
from regard.viewer.opening.wish import Opened, Wish
from regard.viewer.opening.writing import search, write, write_again
from regard.viewer.stage import Stage, Variant, shortened

MOST_CHECKPOINTS = 64
WRITTEN = {
    "targets": "written tokens",
    "read": "written tokens",
}  # what a message calls these kinds of positions
CANNOT_RUN = "the model cannot run on this input"
DOUBTFUL = "(weights incomplete)"
LONG_BEGINNING = 12  # letters that two names have in common: more are left out


def open_stage(wish: Wish, tell: Callable[[str], None] = lambda text: None) -> Stage:
    """Everything a wish asks for, seen. `tell` hears what is going on."""
    if wish.checkpoints:
        return _timeline(wish, tell)
    first = _opened(wish, wish.where, wish.checkpoint, tell)
    made = [first]
    if wish.against is not None:
        made.append(_opened(wish, wish.against, None, tell))
        _tell_apart(made, (wish.where, wish.against))
    for one in made:
        _label(one)
    generation = None
    variants = []
    for one in made:
        for note in one.notes:
            tell(note)
        if wish.generate is not None:
            variant, generation = in_words(partial(_written, one, wish, tell), CANNOT_RUN)
        else:
            variant = in_words(partial(_ran, one), CANNOT_RUN)
        if wish.importance:
            found, words = importance(one, variant.seen, tell)
            variant = dataclasses.replace(variant, importance=found, words=f"{variant.words}; {words}")
        variants.append(variant)
    _check_sizes(variants)
    stage = Stage(
        first.title,
        variants,
        words=_words(first),
        two_sides=first.two_sides,
        image=first.image,
        generation=generation,
        warning=_warning(made),
    )
    return _with_alignment(stage, wish)


def _label(one: Opened) -> None:
    """Put what is wrong with a model's weights where names are shown and saved: title, variant and words."""
    if one.doubt:
        one.title, one.name = f"{one.title} {DOUBTFUL}", f"{one.name} {DOUBTFUL}"
        one.words = f"{one.doubt} · {one.words}"
        one.notes.append(f"Warning: {one.doubt}.")


def _warning(made: list[Opened]) -> str:
    """What every picture says where weights are random; "" where none are."""
    doubtful = [one for one in made if one.doubt]
    if len(made) == 1:
        return doubtful[0].doubt if doubtful else ""
    return "; ".join(f"{one.name}: {one.doubt}" for one in doubtful)


def _opened(wish: Wish, where: str, checkpoint: str | None, tell: Callable[[str], None]) -> Opened:
    if is_run(where):
        return open_run(wish, where, checkpoint, tell)
    if is_pretrained(where):
        if checkpoint is not None:
            raise BadValue(f"--checkpoint: {where} is a single model. Leave it out.")
        return open_pretrained(wish, where, tell)
    raise no_model(where)


def _ran(one: Opened) -> Variant:
    """The model run once."""
    with torch.no_grad(), observe(one.model) as seen:
        output = one.run()
    if one.finish is not None and seen.names():
        labels, image = one.finish(int(seen[seen.names()[0]].shape(0)[3]))
        one.labels, one.image = labels, image
    answer = one.answer(output) if one.answer is not None else None
    return Variant(one.name, seen, one.labels, one.words, one.step, one.ids, answer=answer)


def _written(one: Opened, wish: Wish, tell: Callable[[str], None]) -> tuple[Variant, dict[str, Any]]:
    """The model writing step by step."""
    writer = one.writer
    if writer is None:
        raise BadValue(f"--generate: {one.no_writer}. Leave it out to see one forward pass.")
    length = _fitting(one, wish.generate or 1, tell)
    if wish.beams > 1:
        tell(f"searching with {wish.beams} beams")
        tokens, beams = search(writer, length, wish.beams)
        with observe(one.model) as seen:
            steps = write_again(writer, tokens)
        for step, alive in zip(steps, beams, strict=True):
            step["beams"] = alive
    else:
        with observe(one.model) as seen:
            tokens, steps = write(writer, length)
    pieces, prompt = writer.pieces(tokens), writer.pieces(writer.prompt)
    labels = dict(one.labels)
    if writer.two_sides:
        labels |= {"targets": pieces, "read": [*prompt, *pieces[:-1]]}
    else:
        labels["tokens"] = [*labels.get("tokens", prompt), *pieces]
    ids = one.ids if writer.two_sides or one.ids is None else [*one.ids, *tokens]
    variant = Variant(one.name, seen, labels, one.words, one.step, ids)
    return variant, {"prompt": len(writer.prompt), "steps": steps}


def _check_sizes(variants: list[Variant]) -> None:
    """Two models that cut a text into different pieces have maps that do not fit on each other."""
    counts = [{kind: len(texts) for kind, texts in one.labels.items()} for one in variants]
    for other in counts[1:]:
        if set(other) != set(counts[0]):
            kinds = " and ".join(
                ", ".join(WRITTEN.get(kind, kind) for kind in one) for one in (counts[0], other)
            )
            raise BadValue(
                f"--against: the two have maps over {kinds}, which cannot be compared. Choose a model of the same kind."
            )
        for kind, count in counts[0].items():
            if other[kind] != count:
                raise BadValue(_sizes_differ(variants, kind, count, other[kind]))


def _sizes_differ(variants: list[Variant], kind: str, one: int, two: int) -> str:
    names = f"{variants[0].name} and {variants[1].name}"
    if kind in WRITTEN:
        what, remedy = f"write {one} and {two} tokens", "Give both the same words with --target."
    else:
        what, remedy = f"make {one} and {two} {kind} of this input", "Choose a model with the same tokenizer."
    return f"--against: {names} {what}, so their maps cannot be compared. {remedy}"


def _fitting(one: Opened, wanted: int, tell: Callable[[str], None]) -> int:
    """As many tokens as were wished for, or as the model has positions left."""
    if one.room is None or wanted <= one.room:
        return wanted
    if one.room < 1:
        raise BadValue("--generate: the text fills all the positions the model has. Shorten --text.")
    tell(f"Writing {one.room} tokens at most: the model has no more positions.")
    return one.room


def _words(one: Opened) -> str:
    return f"{one.words} · {shortened(one.input, 200)}" if one.input else one.words


def _tell_apart(made: list[Opened], places: tuple[str, str]) -> None:
    """Names that tell two variants apart: of runs or models, else of folders, without what both begin with."""
    names = [one.title for one in made]
    for other in (lambda place: Path(place).resolve().name, lambda place: str(Path(place))):
        if names[0] == names[1]:
            names = [other(place) for place in places]
    same = next((n for n, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), 0)
    same = max(names[0].rfind(mark, 0, same) for mark in "-+_ /") + 1  # up to the end of a word
    if same >= LONG_BEGINNING:
        names = [f"…{name[same:]}" for name in names]
    if made[0].name == made[1].name or len(set(names)) == 2:
        for one, name in zip(made, names, strict=True):
            one.name = name


def _timeline(wish: Wish, tell: Callable[[str], None]) -> Stage:
    """Every checkpoint of a run on the same input."""
    if not is_run(wish.where):
        raise BadValue(
            f"--checkpoints: {wish.where!r} is no run of regard. Leave it out, or give the folder of a run."
        )
    there = checkpoint_steps(wish.where)
    if not there:
        raise BadValue(f"--checkpoints: {wish.where!r} has none. Train it first.")
    steps = evenly(there, MOST_CHECKPOINTS)
    if len(steps) < len(there):
        tell(f"Showing {len(steps)} of {len(there)} checkpoints, from step {steps[0]} to step {steps[-1]}.")
    last = open_run(wish, wish.where, str(steps[-1]), tell)
    if last.two_sides and wish.target is None:
        # What a model writes changes while it learns; one text for all, the last one's, keeps maps comparable.
        wish = dataclasses.replace(wish, target=_plain_target(last))
    variants = []
    for step in steps:
        tell(f"step {step}")
        one = open_run(wish, wish.where, str(step), tell)
        one.name = f"step {step}"
        variants.append(in_words(partial(_ran, one), CANNOT_RUN))
    metric = losses(wish.where, steps, tell)
    timeline = {"kind": "checkpoints", "steps": steps, "metric": metric}
    return Stage(
        Path(wish.where).resolve().name, variants, words=_words(last), two_sides=last.two_sides, image=last.image,
        timeline=timeline,
    )  # fmt: skip


def evenly(steps: list[int], most: int) -> list[int]:
    """At most so many of some steps, the first and the last among them, evenly spaced."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def _plain_target(one: Opened) -> str | None:
    """What the model wrote, as text."""
    _, _, written = one.input.rpartition(" → “")
    return written.removesuffix("”") or None


def _with_alignment(stage: Stage, wish: Wish) -> Stage:
    gold = None if wish.gold is None else read_gold_line(wish.gold)
    if not stage.two_sides:
        if gold is not None:
            raise BadValue("--gold: this model reads and writes no pair of texts. Leave it out.")
        return stage
    stage.alignment = alignment(stage, gold)
    return stage
