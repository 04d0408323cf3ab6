"""Stories with questions from files in the form of bAbI (Weston et al. 2016).

A line is `id text`, or `id question TAB answer TAB ids of the lines that support it`; id 1 begins a story. Words are
read in lower case and without punctuation; an answer is one label, also where it lists several words ("milk,apple").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, overload

from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.text.split_words import split_words, trimmed

ENDING = ".txt"
_WORD = re.compile(r"[^\W_]+(?:['\-,][^\W_]+)*")
_NAME = re.compile(r"qa(\d+)_")


class StoryBefore(Sequence[str]):
    """The sentences of a story before a question. The story itself is held once for all its questions."""

    def __init__(self, sentences: list[str], count: int) -> None:
        self._sentences, self._count = sentences, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._sentences[at] for at in range(self._count)[place]]
        return self._sentences[range(self._count)[place]]


class Asked(NamedTuple):
    """A question, the sentences that came before it in its story, and where it stands."""

    story: Sequence[str]
    question: str
    answer: str
    supports: tuple[int, ...]  # which sentences of the story the answer follows from
    kind: str  # which of the tasks it belongs to
    whole: int  # the number of its story in its file: questions of one story belong together
    path: Path
    line: int


def words_of(sentence: str) -> list[str]:
    """The words of a sentence, in lower case and without punctuation."""
    return _WORD.findall(sentence.lower())


def kind_of(path: Path) -> str:
    """The name of the task that a file belongs to: "qa1" for qa1_single-supporting-fact_train.txt."""
    match = _NAME.match(path.name)
    return f"qa{match[1]}" if match else re.sub(r"[_.-]*(train|valid|test)\b.*", "", path.name) or path.stem


@reads_file
def read_questions(path: Path, encoding: str = "utf-8", other: str = "latin-1") -> Iterator[Asked]:
    """The questions of a file in order."""
    kind, story_number, count = kind_of(path), 0, 0
    story: list[str] = []
    places: dict[int, int | None] = {}  # of each id, which sentence of the story it is; None: a question
    for line, text in enumerate(read_lines(path, encoding, other), 1):
        if not trimmed(text):
            continue
        number, content = _numbered(path, line, text, len(places))
        if number == 1:
            story, places, story_number = [], {}, story_number + 1
        cells = [trimmed(cell) for cell in content.split("\t")]
        if len(cells) == 1:
            _check_sentence(path, line, cells[0])
            places[number] = len(story)
            story.append(cells[0])
            continue
        question, answer, supports = _question(path, line, cells, places)
        if not story:
            raise wrong(path, line, "a question without a sentence before it in its story. Put the sentences first.")
        places[number] = None
        count += 1
        yield Asked(StoryBefore(story, len(story)), question, answer, supports, kind, story_number, path, line)
    if not count:
        raise wrong(path, None, "holds no question. Expected lines 'id question TAB answer TAB supporting ids'.")


def _numbered(path: Path, line: int, text: str, before: int) -> tuple[int, str]:
    """The id of a line and the rest of it; ids count from 1 in each story."""
    number, _, content = text.strip(" ").partition(" ")
    expected = f"{before + 1}, or 1 where a story begins" if before else "1"
    if not (number.isascii() and number.isdecimal()) or not trimmed(content):
        raise wrong(path, line, f"expected 'id text' with the id {expected}, got {excerpt(text)}.")
    if int(number[:9]) not in (1, before + 1):
        raise wrong(path, line, f"expected the id {expected}, got {number[:20]}. Is a line missing before it?")
    return int(number[:9]), content


def _check_sentence(path: Path, line: int, text: str) -> None:
    if text.endswith("?"):
        raise wrong(path, line, f"the question {excerpt(text)} has no answer. Expected 'question TAB answer TAB ids'.")
    if not words_of(text):
        raise wrong(path, line, f"expected a sentence, got {excerpt(text)}.")


def _question(
    path: Path, line: int, cells: list[str], places: dict[int, int | None]
) -> tuple[str, str, tuple[int, ...]]:
    """The question, its answer, and which sentences of the story support it."""
    if len(cells) > 3:
        raise wrong(path, line, f"expected 'question TAB answer TAB ids', got {len(cells)} columns.")
    question, answer = cells[:2]
    if not words_of(question):
        raise wrong(path, line, f"the question is empty, got {excerpt(question)}.")
    if not answer:
        raise wrong(path, line, f"the answer of {excerpt(question)} is empty.")
    supports = []
    for word in split_words(cells[2]) if len(cells) == 3 else ():
        place = places.get(int(word)) if word.isascii() and word.isdecimal() and len(word) < 10 else None
        if place is None:
            raise wrong(
                path,
                line,
                f"supporting ids: expected those of earlier sentences of the story, got {excerpt(word)}. "
                "Correct it, or leave the ids out.",
            )
        supports.append(place)
    return question, answer.lower(), tuple(supports)
