"""Tagged sentences from files in CoNLL columns: word first, tag last, a blank line between sentences.

Columns stand between tabs or between spaces. Tags are BIO (every entity begins with B-TYPE) or IOB1 (B-TYPE only where
an entity directly follows another of its type); the tags of all files together say which. Sentences are returned in
BIO. The marks `-DOCSTART-` of CoNLL-2003 are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.tasks.answers.tags import OUTSIDE
from regard.tasks.formats.reading import excerpt, read_lines, wrong
from regard.tasks.measures.entities import BIO, IOB1, as_bio, wrong_begin

DOCUMENT = "-DOCSTART-"
SCHEMES = (BIO, IOB1)


class TaggedSentence(NamedTuple):
    """The words of a sentence with their tags, and where the first of them stands."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    path: Path
    line: int


def read_sentences(
    files: Mapping[str, Path], scheme: str | None = None, encoding: str = "utf-8", other: str = "latin-1"
) -> dict[str, list[TaggedSentence]]:
    """The sentences of the file of each split, in BIO. `scheme` None: the one that all tags of all files obey.

    `other`: how another encoding is named, as the reader can type it.
    """
    found = {split: list(_sentences(path, encoding, other)) for split, path in files.items()}
    every = [sentence for part in found.values() for sentence in part]
    _check_scheme(every, scheme)
    return {
        split: [one._replace(tags=tuple(as_bio(one.tags))) for one in part] for split, part in found.items()
    }


def _sentences(path: Path, encoding: str, other: str) -> Iterator[TaggedSentence]:
    words: list[str] = []
    tags: list[str] = []
    start, width, count = 0, 0, 0
    for number, line in enumerate([*read_lines(path, encoding, other), ""], 1):
        if line.strip():
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
    cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
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


def _check_scheme(sentences: Sequence[TaggedSentence], scheme: str | None) -> None:
    """Refuse tags that break the scheme, and without one files that obey neither."""
    broken = {name: _first_wrong(sentences, name) for name in ((scheme,) if scheme else SCHEMES)}
    if None in broken.values():
        return
    name = scheme or BIO
    where = broken[name]
    assert where is not None
    sentence, at = where
    tag, before = sentence.tags[at], sentence.tags[at - 1] if at else "the beginning of the sentence"
    said = f"{tag} follows {before}, but in {name.upper()} "
    if name == BIO:
        said += f"an entity begins with B-{tag[2:]}."
    else:
        said += f"B-{tag[2:]} is written only directly after another entity of type {tag[2:]}."
    beside = broken.get(IOB1) if scheme is None else None
    if beside is not None:
        other, place = beside
        said += (
            f" The files are not IOB1 either: {other.path}:{other.line + place} has {other.tags[place]} where "
            "IOB1 has I-. Correct one of the lines."
        )
    else:
        said += f" Correct the line, or give the other scheme: scheme={IOB1 if name == BIO else BIO}."
    raise wrong(sentence.path, sentence.line + at, said)


def _first_wrong(sentences: Sequence[TaggedSentence], scheme: str) -> tuple[TaggedSentence, int] | None:
    for sentence in sentences:
        at = wrong_begin(sentence.tags, scheme)
        if at is not None:
            return sentence, at
    return None
