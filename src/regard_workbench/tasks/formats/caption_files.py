"""Pictures with descriptions: lines of `image[#n] TAB caption`, and lists that say which image is for which split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import BadValue
from regard_workbench.tasks.formats.file_errors import reads_file
from regard_workbench.tasks.formats.image_files import ENDINGS
from regard_workbench.tasks.formats.reading import excerpt, read_lines, wrong
from regard_workbench.tasks.formats.splits import divided, listed, named_split
from regard_workbench.tasks.formats.stores import is_store
from regard_workbench.tasks.text.split_words import trimmed

TEXTS = (".txt", ".tsv")


class Described(NamedTuple):
    """The name of an image and what people wrote about it."""

    image: str
    captions: tuple[str, ...]


class CaptionFiles(NamedTuple):
    """What a data set is made of."""

    captions: list[Path]
    lists: dict[str, Path]  # the file of each split that names its images
    pictures: list[Path]  # folders and archives


def sorted_out(paths: Sequence[Path], encoding: str, other: str) -> CaptionFiles:
    """Which of the files, and of those in the folders, hold captions, lists and pictures."""
    texts: list[Path] = []
    pictures: list[Path] = []
    for path in paths:
        if path.is_dir():
            texts += listed(path, TEXTS)
            archives = [archive for archive in listed(path) if is_store(archive)]
            pictures += archives or [path]
        elif is_store(path):
            pictures.append(path)
        else:
            texts.append(path)
    captions, lists = [], {}
    for path in texts:
        split = _split_in(path)
        first = next(line for line in read_lines(path, encoding, other) if trimmed(line))
        if "\t" in first:
            captions.append(path)
        elif split is not None and trimmed(first).lower().endswith(ENDINGS):
            lists[split] = path
    if not captions:
        names = ", ".join(str(path) for path in paths)
        raise BadValue(f"data: {names} holds no file of captions: lines of image TAB caption.")
    return CaptionFiles(captions, lists, pictures)


def _split_in(path: Path) -> str | None:
    """The split in a name: "Flickr_8k.trainImages.txt", "dev.tsv"."""
    return named_split(path.with_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.name)))


@reads_file
def read_captions(path: Path, encoding: str, other: str) -> dict[str, tuple[str, ...]]:
    """The captions of each image, in the order of the file."""
    by_image: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path, encoding, other), 1):
        if not trimmed(line):
            continue
        name, tab, caption = line.partition("\t")
        image = re.sub(r"#\d+$", "", trimmed(name))
        if not tab or not image or not trimmed(caption):
            raise wrong(path, number, f"expected image TAB caption, got {excerpt(line)}.")
        by_image.setdefault(image, []).append(trimmed(caption))
    return {image: tuple(captions) for image, captions in by_image.items()}


def read_described(
    files: CaptionFiles, encoding: str, other: str, seed: int, whole: bool = False
) -> dict[str, list[Described]]:
    """The images of each split with their captions; where no file says, a tenth each is for validation and test.

    An image in no list is left out where there are lists. `whole`: everything is for testing.
    """
    splits: dict[str, list[Described]] = {}
    all_captions: dict[str, tuple[str, ...]] = {}
    for path in files.captions:
        by_image = read_captions(path, encoding, other)
        all_captions |= by_image
        splits.setdefault(_split_in(path) or "train", []).extend(
            Described(image, captions) for image, captions in by_image.items()
        )
    if files.lists:
        splits = {split: _listed(path, all_captions, encoding, other) for split, path in files.lists.items()}
    return divided(splits, lambda one: one.image, seed, files.captions, whole)


def _listed(path: Path, known: dict[str, tuple[str, ...]], encoding: str, other: str) -> list[Described]:
    described = []
    for number, line in enumerate(read_lines(path, encoding, other), 1):
        image = trimmed(line)
        if image and image not in known:
            raise wrong(path, number, f"the image {excerpt(image)} has no caption.")
        if image:
            described.append(Described(image, known[image]))
    return described
