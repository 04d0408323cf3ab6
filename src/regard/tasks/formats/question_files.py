"""Questions about images: lines of JSON, {"image": name, "question": text, "answer": text[, "kind": text]}."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard.tasks.formats.reading import excerpt, read_lines, wrong
from regard.tasks.formats.splits import divided, listed, named_split
from regard.tasks.formats.stores import is_store

ENDINGS = (".jsonl", ".json")


class ImageQuestion(NamedTuple):
    """A line of a file."""

    image: str
    question: str
    answer: str
    kind: str = ""


def question_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files of questions, and the folders and archives with pictures."""
    questions: list[Path] = []
    pictures: list[Path] = []
    for path in paths:
        if path.is_dir():
            questions += listed(path, ENDINGS)
            pictures += [path, *[one for one in listed(path) if is_store(one)]]
        elif is_store(path):
            pictures.append(path)
        else:
            questions.append(path)
            pictures.append(path.parent)
    if not questions:
        names = ", ".join(str(path) for path in paths)
        raise BadValue(f"data: {names} holds no file of questions that ends in {' or '.join(ENDINGS)}.")
    return questions, list(dict.fromkeys(pictures))


def read_questions(
    files: Sequence[Path], encoding: str, other: str, seed: int, whole: bool = False
) -> dict[str, list[ImageQuestion]]:
    """The questions of each split; questions about one image stay together. `whole`: everything is for testing."""
    parts: dict[str, list[ImageQuestion]] = {}
    for path in files:
        part = parts.setdefault(named_split(path) or "train", [])
        for number, line in enumerate(read_lines(path, encoding, other), 1):
            if line.strip():
                part.append(_read(path, number, line))
    return divided(parts, lambda one: one.image, seed, whole)


def _read(path: Path, number: int, line: str) -> ImageQuestion:
    expected = 'expected {"image": …, "question": …, "answer": …}'
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as trouble:
        raise wrong(path, number, f"{expected}, got {excerpt(line)}, which is no JSON: {trouble}.") from None
    if not isinstance(found, dict):
        raise wrong(path, number, f"{expected}, got {excerpt(line)}.")
    texts = {}
    for name in ImageQuestion._fields:
        text = found.get(name, "" if name == "kind" else None)
        if isinstance(text, (int, float)) and not isinstance(text, bool) and name == "answer":
            text = str(text)  # a number that was counted
        if not isinstance(text, str) or (name != "kind" and not text.strip()):
            raise wrong(path, number, f"{expected}, each a text, got {name}: {excerpt(str(text))}.")
        texts[name] = text.strip()
    return ImageQuestion(**texts)
