"""A page model from options: every variant is opened and run once under observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.errors import BadValue
from regard.observation.observe import observe
from regard_workbench.viewer.opening.alignment import alignment, read_gold_line
from regard_workbench.viewer.opening.causes import has_logits
from regard_workbench.viewer.opening.generation import search, write, write_again
from regard_workbench.viewer.opening.importance import importance
from regard_workbench.viewer.opening.library_errors import in_words
from regard_workbench.viewer.opening.live import Live, written_text
from regard_workbench.viewer.opening.no_model import no_model
from regard_workbench.viewer.opening.options import OpenedModel, ViewOptions
from regard_workbench.viewer.opening.predictions import generated
from regard_workbench.viewer.opening.pretrained import is_pretrained, open_pretrained
from regard_workbench.viewer.opening.runs import checkpoint_steps, is_run, losses, open_run
from regard_workbench.viewer.page_model import PageModel, Variant, shortened

MOST_CHECKPOINTS = 64
WRITTEN = {"targets": "written tokens", "read": "written tokens"}  # names of these kinds of positions in messages
CANNOT_RUN = "the model cannot run on this input"
DOUBTFUL = "(weights incomplete)"
LONG_BEGINNING = 12  # common characters of two names beyond which they are left out


def open_page(options: ViewOptions, tell: Callable[[str], None] = lambda text: None) -> PageModel:
    """Open and run everything that the options ask for; progress goes to `tell`."""
    if options.checkpoints:
        return _timeline(options, tell)
    first = opened_model(options, options.where, options.checkpoint, tell)
    opened = [first]
    if options.against is not None:
        opened.append(opened_model(options, options.against, None, tell))
        _tell_apart(opened, (options.where, options.against))
    return assembled(opened, options, tell)


def assembled(
    made: list[OpenedModel], options: ViewOptions, tell: Callable[[str], None] = lambda text: None
) -> PageModel:
    """Run opened models and put what was seen into one page model; another input may be asked for later."""
    first = made[0]
    for opened in made:
        _label(opened)
    generation = None
    variants = []
    for opened in made:
        for note in opened.notes:
            tell(note)
        if options.generate is not None:
            variant, generation = in_words(partial(_written, opened, options, tell), CANNOT_RUN)
        else:
            variant = in_words(partial(_ran, opened), CANNOT_RUN)
        if options.importance:
            importances, words = importance(opened, variant.seen, tell)
            variant = dataclasses.replace(variant, importance=importances, words=f"{variant.words}; {words}")
        variants.append(variant)
    _check_sizes(variants)
    page_model = PageModel(
        first.title,
        variants,
        words=_words(first),
        two_sides=first.two_sides,
        image=first.image,
        generation=generation,
        warning=_warning(made),
        bits=first.found_bits,
        live=Live(made, options, assembled) if all(opened.reopen is not None for opened in made) else None,
    )
    return _with_alignment(page_model, options)


def _label(one: OpenedModel) -> None:
    """Put a warning about a model's weights into its title, variant name and description."""
    if one.doubt:
        one.title, one.name = f"{one.title} {DOUBTFUL}", f"{one.name} {DOUBTFUL}"
        one.words = f"{one.doubt} · {one.words}"
        one.notes.append(f"Warning: {one.doubt}.")


def _warning(made: list[OpenedModel]) -> str:
    """The warning on every picture where weights are random; "" where none are."""
    doubtful = [opened for opened in made if opened.doubt]
    if len(made) == 1:
        return doubtful[0].doubt if doubtful else ""
    return "; ".join(f"{opened.name}: {opened.doubt}" for opened in doubtful)


def opened_model(options: ViewOptions, where: str, checkpoint: str | None, tell: Callable[[str], None]) -> OpenedModel:
    """The model of a folder, a run or a pretrained one, with the input that the options ask for."""
    if is_run(where):
        return open_run(options, where, checkpoint, tell)
    if is_pretrained(where):
        if checkpoint is not None:
            raise BadValue(f"--checkpoint: {where} is a single model. Leave it out.")
        if options.example is not None:
            raise BadValue(f"--example: {where} belongs to no task. Give --text or --image.")
        return open_pretrained(options, where, tell)
    raise no_model(where)


def _ran(one: OpenedModel) -> Variant:
    """Run the model once under observation."""
    with torch.no_grad(), observe(one.model) as observation:
        output = one.run()
    if one.finish is not None and observation.names():
        labels, image = one.finish(int(observation[observation.names()[0]].shape(0)[3]))
        one.labels, one.image = labels, image
    answer = one.answer(output) if one.answer is not None else None
    one.found_bits = one.bits(output) if one.bits is not None else None
    one.has_logits = has_logits(one, output)
    return Variant(one.name, observation, one.labels, one.words, one.step, one.ids, answer=answer)


def _written(one: OpenedModel, options: ViewOptions, tell: Callable[[str], None]) -> tuple[Variant, dict[str, Any]]:
    """Let the model generate step by step under observation."""
    writer = one.writer
    if writer is None:
        raise BadValue(f"--generate: {one.no_writer}. Leave it out to see one forward pass.")
    length = _fitting(one, options.generate or 1, tell)
    if options.beams > 1:
        tell(f"searching with {options.beams} beams")
        tokens, beams = search(writer, length, options.beams)
        with observe(one.model) as observation:
            steps = write_again(writer, tokens)
        for step, alive in zip(steps, beams, strict=True):
            step["beams"] = alive
    else:
        with observe(one.model) as observation:
            tokens, steps = write(writer, length)
    pieces, prompt = writer.pieces(tokens), writer.pieces(writer.prompt)
    labels = dict(one.labels)
    if writer.two_sides:
        labels |= {"targets": pieces, "read": [*prompt, *pieces[:-1]]}
    else:
        labels["tokens"] = [*labels.get("tokens", prompt), *pieces]
    ids = one.ids if writer.two_sides or one.ids is None else [*one.ids, *tokens]
    variant = Variant(one.name, observation, labels, one.words, one.step, ids, answer=generated(steps))
    return variant, {"prompt": len(writer.prompt), "steps": steps}


def _check_sizes(variants: list[Variant]) -> None:
    """Refuse two models whose maps have different sizes, for instance from different tokenizers."""
    counts = [{kind: len(texts) for kind, texts in variant.labels.items()} for variant in variants]
    for sizes in counts[1:]:
        if set(sizes) != set(counts[0]):
            kinds = " and ".join(", ".join(WRITTEN.get(kind, kind) for kind in names) for names in (counts[0], sizes))
            raise BadValue(
                f"--against: the two have maps over {kinds}, which cannot be compared. Choose a model of the same kind."
            )
        for kind, count in counts[0].items():
            if sizes[kind] != count:
                raise BadValue(_sizes_differ(variants, kind, count, sizes[kind]))


def _sizes_differ(variants: list[Variant], kind: str, one: int, two: int) -> str:
    names = f"{variants[0].name} and {variants[1].name}"
    if kind in WRITTEN:
        fault, remedy = f"write {one} and {two} tokens", "Give both the same words with --target."
    else:
        fault, remedy = f"make {one} and {two} {kind} of this input", "Choose a model with the same tokenizer."
    return f"--against: {names} {fault}, so their maps cannot be compared. {remedy}"


def _fitting(one: OpenedModel, wanted: int, tell: Callable[[str], None]) -> int:
    """The wanted number of tokens, or as many as the model has positions left."""
    if one.room is None or wanted <= one.room:
        return wanted
    if one.room < 1:
        raise BadValue("--generate: the text fills all the positions the model has. Shorten --text.")
    tell(f"Writing {one.room} tokens at most: the model has no more positions.")
    return one.room


def _words(one: OpenedModel) -> str:
    return f"{one.words} · {shortened(one.input, 200)}" if one.input else one.words


def _tell_apart(made: list[OpenedModel], folders: tuple[str, str]) -> None:
    """Distinct names for two variants: of runs or models, else of folders, without their common prefix."""
    names = [opened.title for opened in made]
    for naming in (lambda folder: Path(folder).resolve().name, lambda folder: str(Path(folder))):
        if names[0] == names[1]:
            names = [naming(folder) for folder in folders]
    same = next((n for n, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), 0)
    same = max(names[0].rfind(mark, 0, same) for mark in "-+_ /") + 1  # up to the end of a word
    if same >= LONG_BEGINNING:
        names = [f"…{name[same:]}" for name in names]
    if made[0].name == made[1].name or len(set(names)) == 2:
        for opened, name in zip(made, names, strict=True):
            opened.name = name


def _timeline(options: ViewOptions, tell: Callable[[str], None]) -> PageModel:
    """Every checkpoint of a run on the same input."""
    if not is_run(options.where):
        raise BadValue(
            f"--checkpoints: {options.where!r} is not a run of regard. Leave it out, or give the folder of a run."
        )
    all_steps = checkpoint_steps(options.where)
    if not all_steps:
        raise BadValue(f"--checkpoints: {options.where!r} has none. Train it first.")
    steps = evenly(all_steps, MOST_CHECKPOINTS)
    if len(steps) < len(all_steps):
        tell(f"Showing {len(steps)} of {len(all_steps)} checkpoints, from step {steps[0]} to step {steps[-1]}.")
    last = open_run(options, options.where, str(steps[-1]), tell)
    if last.two_sides and options.target is None:
        # A model's own text changes during training; the last checkpoint's text for all keeps maps comparable.
        options = dataclasses.replace(options, target=written_text(last))
    variants = []
    for step in steps:
        tell(f"step {step}")
        opened = open_run(options, options.where, str(step), tell)
        opened.name = f"step {step}"
        variants.append(in_words(partial(_ran, opened), CANNOT_RUN))
    metric = losses(options.where, steps, tell)
    timeline = {"kind": "checkpoints", "steps": steps, "metric": metric}
    return PageModel(
        Path(options.where).resolve().name,
        variants,
        words=_words(last),
        two_sides=last.two_sides,
        image=last.image,
        timeline=timeline,
    )


def evenly(steps: list[int], most: int) -> list[int]:
    """At most `most` of the steps, evenly spaced, including the first and the last."""
    if len(steps) <= most:
        return steps
    return [steps[round(number * (len(steps) - 1) / (most - 1))] for number in range(most)]


def _with_alignment(page_model: PageModel, options: ViewOptions) -> PageModel:
    gold = None if options.gold is None else read_gold_line(options.gold)
    if not page_model.two_sides:
        if gold is not None:
            raise BadValue("--gold: this model does not translate a text into another. Leave it out.")
        return page_model
    page_model.alignment = alignment(page_model, gold)
    return page_model
