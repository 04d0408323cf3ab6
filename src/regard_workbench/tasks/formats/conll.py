"""Tagged sentences from files in CoNLL columns: word first, tag last, a blank line between sentences.

Columns stand between tabs or between spaces. Tags are BIO (every entity begins with B-TYPE) or IOB1 (B-TYPE only where
an entity directly follows another of its type), or a mixture of both, as in public copies of CoNLL-2003. Sentences are
returned in BIO. The marks `-DOCSTART-` of CoNLL-2003 are left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard_workbench.files import shown
from regard_workbench.tasks.answers.tags import OUTSIDE
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.formats.splits import chosen_files, listed, named_split
from regard_workbench.tasks.measures.entities import BIO, IOB1, as_bio, wrong_begins
from regard_workbench.tasks.parts.task import SPLITS
from regard_workbench.tasks.text.split_words import split_words, trimmed

DOCUMENT = "-DOCSTART-"
SCHEMES = (BIO, IOB1)
MOST_TYPES = 500


class TagsRepaired(UserWarning):
    """Tags that break the scheme of their files: how many, where the first is, and how they were read."""


class TaggedSentence(NamedTuple):
    """The words of a sentence with their tags, and where the first of them stands."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    path: Path
    line: int


def tagged_files(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each split, of one set alone; those that are called after none are for training."""
    every = [file for path in paths for file in (listed(path) if path.is_dir() else [path])]
    for split in SPLITS:
        named = [path for path in every if named_split(path) == split]
        if len(named) > 1:
            raise BadValue(
                f"data: {named[0]} and {named[1]} are both called {split}. Give the files of one set: TRAIN,DEV,TEST."
            )
    if not every:
        raise BadValue(f"data: there is no file in {', '.join(map(str, paths))}.")
    return chosen_files(paths)


@reads_file
def read_sentences(
    files: Mapping[str, Path], scheme: str | None = None, encoding: str = "utf-8", other: str = "latin-1"
) -> dict[str, list[TaggedSentence]]:
    """The sentences of the file of each split, in BIO. `scheme` None: the one that most tags of all files obey.

    Every sequence of B-TYPE, I-TYPE and O has entities by the rules of conlleval. The scheme changes nothing about
    them: it says which tags were repaired. `other`: how another encoding is named, as the reader can type it.
    """
    by_split = {split: list(_sentences(path, encoding, other)) for split, path in files.items()}
    every = [sentence for sentences in by_split.values() for sentence in sentences]
    types = {tag[2:] for sentence in every for tag in sentence.tags if tag != OUTSIDE}
    if len(types) > MOST_TYPES:
        raise wrong(
            every[0].path,
            None,
            f"the tags of these files have {len(types):,} types of entities, expected at most {MOST_TYPES}: a model "
            "scores each pair of tags. Is the last column the tag?",
        )
    _tell_repairs(every, scheme)
    return {
        split: [sentence._replace(tags=tuple(as_bio(sentence.tags))) for sentence in sentences]
        for split, sentences in by_split.items()
    }


def _sentences(path: Path, encoding: str, other: str) -> Iterator[TaggedSentence]:
    words: list[str] = []
    tags: list[str] = []
    start, width, count = 0, 0, 0
    for number, line in enumerate([*read_lines(path, encoding, other), ""], 1):
        if trimmed(line):
            cells = _cells(path, number, line, width)
            if not width:
                width = len(cells)
            start = start or number
            words.append(cells[0])
            tags.append(cells[-1])
        elif words:
            if words != [DOCUMENT]:
                yield TaggedSentence(tuple(words), tuple(tags), path, start)
                count += 1
            words, tags, start = [], [], 0
    if not count:
        raise wrong(path, None, f"holds no sentence, only marks of documents ({DOCUMENT}).")


def _cells(path: Path, number: int, line: str, width: int) -> list[str]:
    """The columns of a line; `width`: how many the file's first line has, 0 for that line itself."""
    cells = [trimmed(cell) for cell in line.split("\t")] if "\t" in line else split_words(line)
    if len(cells) < 2:
        raise wrong(
            path,
            number,
            f"expected a word and a tag in columns, got {excerpt(line)}. Put a tab or a space between them, and a "
            "blank line between sentences.",
        )
    if width and len(cells) != width:
        raise wrong(path, number, f"expected {width} columns as in the first line, got {len(cells)}.")
    if not cells[0]:
        raise wrong(path, number, f"the word is empty, got {excerpt(line)}.")
    tag = cells[-1]
    if tag != OUTSIDE and not (tag[:2] in ("B-", "I-") and len(tag) > 2):
        raise wrong(
            path,
            number,
            f"expected the tag O, B-TYPE or I-TYPE in the last column, got {excerpt(tag)}. Convert other schemes "
            "(IOBES, BILOU) to BIO first.",
        )
    return cells


def _tell_repairs(sentences: Sequence[TaggedSentence], scheme: str | None) -> None:
    """Warn of tags that break the scheme, or without one the scheme that most obey: where, and how they were read."""
    broken = {name: _wrong_tags(sentences, name) for name in ((scheme,) if scheme else SCHEMES)}
    name = min(broken, key=lambda name: len(broken[name]))
    if not broken[name]:
        return
    sentence, at = broken[name][0]
    tag, before = sentence.tags[at], excerpt(sentence.tags[at - 1]) if at else "the beginning of the sentence"
    usual = f"{'B' if name == BIO else 'I'}-{tag[2:]}"
    count, place = len(broken[name]), f"{shown(sentence.path)}:{sentence.line + at}"
    warnings.warn(
        f"{count:,} of {sum(len(tagged.tags) for tagged in sentences):,} tags {'is' if count == 1 else 'are'} not "
        f"{name.upper()}, the first in {place} ({excerpt(tag)} after {before}, where "
        f"{name.upper()} has {excerpt(usual)}); read by the rules of conlleval, by which an entity begins there.",
        TagsRepaired,
        stacklevel=2,
    )


def _wrong_tags(sentences: Sequence[TaggedSentence], scheme: str) -> list[tuple[TaggedSentence, int]]:
    return [(sentence, at) for sentence in sentences for at in wrong_begins(sentence.tags, scheme)]
