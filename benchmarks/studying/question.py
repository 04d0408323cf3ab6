"""One question of the study, as data: what is asked, the comparison that answers it, and what counts as close."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = "{data}"  # stands in arguments for the folder with data sets


@dataclass(frozen=True)
class Margin:
    """How far behind the best still counts as good enough, and how a reader is told."""

    amount: float
    words: str  # "1 point", "2 %"
    relative: bool = False  # a part of the best, not a difference

    def allows(self, value: float, best: float, *, higher_is_better: bool) -> bool:
        """Whether a value is that close to the best."""
        behind = best - value if higher_is_better else value - best
        return behind <= self.amount * (abs(best) if self.relative else 1.0) + 1e-12


@dataclass(frozen=True)
class Question:
    """What is asked of which job."""

    name: str  # of its folder
    title: str  # of its section
    job: str  # for the table of answers: "continue a text"
    asks: str  # the question in words
    arguments: tuple[str, ...]  # of `regard compare`, without --out
    margin: Margin
    story: str  # what the job is and why it is asked; nothing about results
    tuned: str = ""  # what was chosen by trying beforehand, and how; empty: nothing
    same: tuple[str, ...] = ()  # attentions that must be one thing here
    why_same: str = ""

    def command(self, data: str, out: str) -> list[str]:
        """What is typed, word by word."""
        words = [word.replace(DATA, data) for word in self.arguments]
        return ["regard", "compare", *words, "--out", out]

    def shown(self, data: str, home: str) -> str:
        """The same for a reader, as a shell takes it."""
        return shlex.join(self.command(data, f"{home}/{self.name}"))

    def contradicted(self, settings: dict[str, Any]) -> str:
        """Where a run's settings are not what the arguments say, in words; empty if they agree."""
        options = dict(zip(self.arguments, self.arguments[1:], strict=False))
        said = {"task": self.arguments[0]} | {
            name.removeprefix("--").replace("-", "_"): value
            for name, value in options.items()
            if name.startswith("--")
        }
        for name in ("models", "attention", "seeds", "workers", "threads"):
            said.pop(name, None)
        if "data" in said:  # the folder may lie elsewhere
            said["data"] = said["data"].replace(DATA, "")
        for name, value in said.items():
            have = settings.get(name)
            if name == "data":
                have = _end(have, len(value))
            if not _equal(have, value):
                return f"{name} is {have!r} in its runs and {value!r} in the list"
        return ""


def _end(files: object, letters: int) -> str:
    """The last letters of the path, given alone or in a list."""
    first = files[0] if isinstance(files, (list, tuple)) else files
    return Path(str(first or "")).as_posix()[-letters:]


def _equal(have: object, said: str) -> bool:
    if isinstance(have, (int, float)) and not isinstance(have, bool):
        try:
            return float(have) == float(said)
        except ValueError:
            return False
    return str(have) == said
