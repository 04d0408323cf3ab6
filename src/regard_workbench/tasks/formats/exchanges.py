"""What was said and what was replied: from WOZ 2.0 JSON, or from lines with a turn in each column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard_workbench.tasks.formats import woz
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import Data, excerpt, paths_of, read_lines, wrong
from regard_workbench.tasks.formats.splits import chosen_files, divided, listed
from regard_workbench.tasks.formats.woz import Dialogue, spoken
from regard_workbench.tasks.generated import restaurants
from regard_workbench.tasks.text.split_words import trimmed

GENERATED = {"train": 800, "validation": 60, "test": 120}  # dialogues, each with several exchanges
ENDINGS = (".tsv", ".txt")


class Exchange(NamedTuple):
    """The turns so far, oldest first, and a reply; `right`: whether it is the one that was given."""

    context: tuple[str, ...]
    reply: str
    right: bool = True
    path: Path = Path()
    line: int | None = None


def of_dialogue(dialogue: Dialogue) -> list[Exchange]:
    """Each turn of the system after the first words of the user, with all that was said before."""
    exchanges: list[Exchange] = []
    before: list[str] = []
    for turn in dialogue.turns:
        if before and turn.system:
            exchanges.append(Exchange(tuple(before), turn.system, True, dialogue.path, turn.line))
        before += [utterance for utterance in (turn.system, turn.user) if utterance]
    return exchanges


@reads_file
def read_exchanges(
    data: Data | None, encoding: str, seed: int, whole: bool, *, labelled: bool, other: str = "latin-1"
) -> dict[str, list[Exchange]]:
    """The exchanges of each split; generated ones without `data`. `labelled`: lines begin with 1 (right) or 0.

    `other`: how another encoding is named, as the reader can type it.
    """
    if data is None:
        splits: dict[str, list[Dialogue]] = {
            split: list(restaurants.dialogues(split, count)) for split, count in GENERATED.items()
        }
        return {
            split: [exchange for dialogue in some for exchange in of_dialogue(dialogue)]
            for split, some in splits.items()
        }
    paths = paths_of(data)
    files = [file for path in paths for file in (listed(path, (*ENDINGS, ".json")) if path.is_dir() else [path])]
    if any(".json" in file.suffixes for file in files):
        splits, _ = woz.read_splits(data, encoding, seed, whole, other)
        return {
            split: [exchange for dialogue in some for exchange in of_dialogue(dialogue)]
            for split, some in splits.items()
        }
    if not files:
        raise BadValue(f"data: expected files that end in {', '.join((*ENDINGS, '.json'))}, found none in {data}.")
    lines = {
        split: [exchange for path in some for exchange in read_turns(path, encoding, labelled, other)]
        for split, some in chosen_files(paths, ENDINGS).items()
    }
    return divided(lines, lambda one: "\t".join(one.context), seed, data, whole)


@reads_file
def read_turns(path: Path, encoding: str, labelled: bool, other: str = "latin-1") -> list[Exchange]:
    """Lines `turn TAB … TAB reply`, after `1 TAB` or `0 TAB` where they are labelled."""
    exchanges = []
    form = "label TAB turn TAB … TAB reply" if labelled else "turn TAB … TAB reply"
    for number, line in enumerate(read_lines(path, encoding, other), 1):
        if not trimmed(line):
            continue
        cells = line.split("\t")
        if len(cells) < 2 + labelled:
            columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            raise wrong(path, number, f"expected {form}, got {columns}: {excerpt(line)}.")
        if labelled and trimmed(cells[0]) not in ("0", "1"):
            raise wrong(path, number, f"expected a label 0 or 1 in the first column, got {excerpt(cells[0])}.")
        turns = [spoken(cell) for cell in cells[labelled:]]
        if not turns[-1] or not any(turns[:-1]):
            raise wrong(path, number, f"the {'context' if turns[-1] else 'reply'} is empty. Expected {form}.")
        right = not labelled or trimmed(cells[0]) == "1"
        exchanges.append(Exchange(tuple(turn for turn in turns[:-1] if turn), turns[-1], right, path, number))
    return exchanges


class ReplyChoice(NamedTuple):
    """A context, replies to choose from and which of them are right; `drawn`: how many wrong ones a batch adds."""

    context: tuple[str, ...]
    replies: tuple[str, ...]
    right: tuple[bool, ...] = ()
    drawn: int = 0


def grouped(exchanges: Sequence[Exchange]) -> list[ReplyChoice]:
    """Neighbouring lines with the same context as one choice; one of its replies must be right.

    A dialogue gives each context one reply, which is right: neighbours are then choices of their own.
    """
    several = not all(exchange.right for exchange in exchanges)
    runs: list[list[Exchange]] = []
    for exchange in exchanges:
        if several and runs and runs[-1][-1].context == exchange.context:
            runs[-1].append(exchange)
        else:
            runs.append([exchange])
    choices = []
    for run in runs:
        right = tuple(exchange.right for exchange in run)
        if not any(right):
            last = run[-1]
            raise wrong(last.path, last.line, "no reply to this context has the label 1. Expected one at least.")
        choices.append(ReplyChoice(run[0].context, tuple(exchange.reply for exchange in run), right))
    return choices
