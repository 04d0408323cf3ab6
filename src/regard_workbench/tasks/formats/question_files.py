"""Questions about images: lines of JSON, {"image": name, "question": text, "answer": text[, "kind": text]}."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.json_values import json_object
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.formats.splits import divided, listed, named_split
from regard_workbench.tasks.formats.stores import is_store
from regard_workbench.tasks.text.split_words import trimmed

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
            pictures += [path, *[archive for archive in listed(path) if is_store(archive)]]
        elif is_store(path):
            pictures.append(path)
        else:
            questions.append(path)
            pictures.append(path.parent)
    if not questions:
        names = ", ".join(str(path) for path in paths)
        raise BadValue(f"data: {names} holds no file of questions that ends in {' or '.join(ENDINGS)}.")
    return questions, list(dict.fromkeys(pictures))


@reads_file
def read_questions(
    files: Sequence[Path], encoding: str, other: str, seed: int, whole: bool = False
) -> dict[str, list[ImageQuestion]]:
    """The questions of each split; questions about one image stay together. `whole`: everything is for testing."""
    splits: dict[str, list[ImageQuestion]] = {}
    for path in files:
        questions = splits.setdefault(named_split(path) or "train", [])
        for number, line in enumerate(read_lines(path, encoding, other), 1):
            if trimmed(line):
                questions.append(_read(path, number, line))
    return divided(splits, lambda one: one.image, seed, files, whole)


def _read(path: Path, number: int, line: str) -> ImageQuestion:
    form = '{"image": …, "question": …, "answer": …}'
    fields = json_object(path, number, line, form)
    texts = {}
    for name in ImageQuestion._fields:
        text = fields.get(name, "" if name == "kind" else None)
        if isinstance(text, (int, float)) and not isinstance(text, bool) and name == "answer":
            text = str(text)  # a number that was counted
        if not isinstance(text, str) or (name != "kind" and not trimmed(text)):
            raise wrong(path, number, f"expected {form}, each a text, got {name}: {excerpt(str(text))}.")
        texts[name] = trimmed(text)
    return ImageQuestion(**texts)
