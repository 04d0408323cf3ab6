"""Files that cannot be read: stop at the first, or skip them and say which, while the others are read by threads."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from regard.errors import BadValue, unknown_name
from regard.registry import parse
from regard_workbench.tasks.parts.task import TASKS, names, spelled

BAD_FILES = ("stop", "skip")
CHUNK = 32  # files that are in memory for the threads at once
TOLD = 3  # files that are named in a warning

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass
class BadFiles:
    """What to do about a file that cannot be read (stop, skip), and what is to be said about those that were read."""

    choice: str = "stop"
    skipped: list[str] = field(default_factory=list)  # why, of each file that was left out
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.choice not in BAD_FILES:
            raise unknown_name("bad_files", self.choice, BAD_FILES)

    def met(self, error: BadValue) -> None:
        """Raise the error of a file, or note it and go on."""
        if self.choice == "stop":
            raise BadValue(f"{error} To go on without such files: --bad-files skip.") from None
        self.skipped.append(str(error))

    def tell(self) -> None:
        """Warn once of everything that was noted since the last time."""
        from regard_workbench.tasks.formats.image_files import PicturesRead

        for single, several, texts in (
            ("1 file was skipped", "{} files were skipped", self.skipped),
            ("on 1 file", "on {} files", self.notes),
        ):
            if texts:
                words = single if len(texts) == 1 else several.format(f"{len(texts):,}")
                sample = " ".join(text.removeprefix("data: ") for text in texts[:TOLD])
                more = f" … and {len(texts) - TOLD:,} more." if len(texts) > TOLD else ""
                warnings.warn(f"{words}: {sample}{more}", PicturesRead, 3)
            texts.clear()

    def each(
        self, items: Sequence[Item], fetch: Callable[[Item], bytes], decode: Callable[[Item, bytes], Found]
    ) -> Iterator[tuple[Item, Found]]:
        """Each item with what was decoded for it, in the order of the items; those that cannot be read are `met`.

        `fetch` runs in this thread, since archives are read one member at a time; `decode` in several.
        """
        from regard_workbench.tasks.formats.image_files import quiet

        def attempt(item: Item, content: bytes | BadValue) -> Found | BadValue:
            if isinstance(content, BadValue):
                return content
            try:
                return decode(item, content)
            except BadValue as error:
                return error

        def content(item: Item) -> bytes | BadValue:
            try:
                return fetch(item)
            except BadValue as error:
                return error

        with quiet(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start in range(0, len(items), CHUNK):
                some = items[start : start + CHUNK]
                decoded = pool.map(attempt, some, [content(item) for item in some])
                for item, result in zip(some, decoded, strict=True):
                    if isinstance(result, BadValue):
                        self.met(result)
                    else:
                        yield item, result


def task_with(task: str, choice: str) -> str:
    """A task's name with its option `bad_files`, for which the command line has a flag; refused where it has none."""
    if not task:
        raise BadValue("--bad-files: name the task with it. A resumed run keeps its own choice.")
    name, options = parse(task)
    able = [candidate for candidate in names() if "bad_files" in inspect.signature(TASKS[candidate]).parameters]
    if name not in able and name in TASKS:
        raise BadValue(f"--bad-files: the task {name} reads no pictures from files. Tasks that do: {', '.join(able)}.")
    return spelled(name, {**options, "bad_files": choice})
