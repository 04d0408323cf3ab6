"""What a comparison writes may be shared, so it holds no path of its maker: files are named without their folders.

A path inside the folder that the command was typed in becomes relative to it, and works there. Of any other absolute
path the last name stays. Runs keep the paths that they were started with, in their own folders.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard_workbench.comparison.comparison import Comparison
from regard_workbench.comparison.job import Contestant, Outcome

_BEFORE = r"(?<![\w.~/<])"  # not inside a relative path, an address or a tag
_AFTER = r"(?![\w.-])"
_FOLDERS = re.compile(rf"{_BEFORE}~?/(?:[^\s/'\",;:()<>|]+/)+")


def without_folders(text: str) -> str:
    """A text with every absolute path made relative to the current folder, or cut to its last name."""
    # These two may hold spaces, so that no pattern could tell where they end.
    text = re.sub(rf"{_BEFORE}{re.escape(str(Path.cwd()))}/(?=[\w.])", "", text)
    text = re.sub(rf"{_BEFORE}{re.escape(str(Path.home()))}{_AFTER}", "~", text)
    return _FOLDERS.sub("", text)


def plain_without_folders(content: Any) -> Any:
    """Plain data with every text in it, names included, `without_folders`."""
    if isinstance(content, str):
        return without_folders(content)
    if isinstance(content, dict):
        return {plain_without_folders(name): plain_without_folders(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(map(plain_without_folders, content))
    return content


def shareable(comparison: Comparison) -> Comparison:
    """The same comparison as it is written; settings, and the folders to read from, stay."""
    names = _names([*comparison.contestants, *(run.contestant for run in comparison.outcomes)])
    labels = {contestant.label: name.label for contestant, name in names.items()}

    def relabelled(values: dict[str, Any]) -> dict[str, Any]:
        return {labels.get(label, label): plain_without_folders(value) for label, value in values.items()}

    match = comparison.match
    if match is not None:
        match = dataclasses.replace(
            match, models=relabelled(match.models), widths=relabelled(match.widths), sizes=relabelled(match.sizes)
        )
    return dataclasses.replace(
        comparison,
        task=without_folders(comparison.task),
        command=without_folders(comparison.command),
        contestants=[names[contestant] for contestant in comparison.contestants],
        outcomes=[_shown(run, names[run.contestant]) for run in comparison.outcomes],
        costs=relabelled(comparison.costs),
        left_out=plain_without_folders(comparison.left_out),
        chosen=relabelled(comparison.chosen),
        match=match,
    )


def _names(contestants: Sequence[Contestant]) -> dict[Contestant, Contestant]:
    """Each contestant as it is shown; numbered where only folders told them apart, since their runs must not mix."""
    names: dict[Contestant, Contestant] = {}
    for contestant in dict.fromkeys(contestants):
        plain = Contestant(*map(plain_without_folders, dataclasses.astuple(contestant)))
        name = plain
        for number in itertools.count(2):
            if name not in names.values():
                break
            name = dataclasses.replace(plain, init_from=f"{plain.init_from or 'other files'} ({number})")
        names[contestant] = name
    return names


def _shown(run: Outcome, name: Contestant) -> Outcome:
    texts = {text: plain_without_folders(getattr(run, text)) for text in ("command", "error", "changes")}
    return dataclasses.replace(run, **dataclasses.asdict(name), **texts)
