"""YAML as settings need it: mappings, lists, texts, numbers, truth and null, of a bounded size, said once.

A few hundred bytes of YAML can stand for gigabytes (aliases of aliases), hide a setting behind a second one of the same
name, or hold dates, sets and bytes. All of that is refused, with the line it stands in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from regard.core.files import read_bytes, shown
from regard.errors import BadValue
from regard.training.config.readers import LARGEST

MOST_BYTES = 256 * 1024
DEEPEST = 16  # levels of lists and mappings
MOST_NODES = 20_000

_TAG = "tag:yaml.org,2002:"
_DATE = _TAG + "timestamp"
_KNOWN = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Refused(yaml.MarkedYAMLError):
    """What this reader does not take, with its place."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Plain(yaml.SafeLoader):
    """Builds plain values from nodes that were found to be few, shallow and without aliases."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag == _DATE:  # `name: 2024-05-01` is meant as it is written
            return self.construct_scalar(node)
        if node.tag not in _KNOWN:
            raise _Refused(
                f"expected plain values, got one of type {node.tag.removeprefix(_TAG)!r}", node.start_mark
            )
        try:
            found = super().construct_object(node, deep)
        except (
            ValueError,
            LookupError,
            AttributeError,
            TypeError,
        ):  # `!!bool maybe`, a number of thousands of digits
            kind = node.tag.removeprefix(_TAG)
            raise _Refused(f"{str(node.value)[:40]!r} is no {kind}", node.start_mark) from None
        return _in_range(found, node.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                raise _Refused("`<<` is not taken; write each setting out", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _Refused("expected the name of a setting, got a list or a mapping", key_node.start_mark)
            if key in seen:
                raise _Refused(f"{str(key)[:40]!r} stands there twice; keep one of them", key_node.start_mark)
            seen.add(key)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def _in_range(found: Any, mark: Any) -> Any:
    if isinstance(found, float) and not math.isfinite(found):
        raise _Refused(f"expected a finite number, got {found}", mark)
    if isinstance(found, int) and abs(found) > LARGEST:
        raise _Refused("expected a whole number of at most 63 bits, got a larger one", mark)
    return found


def _check_events(text: str) -> None:
    """Refuse aliases, depth and number of nodes while the text is only read, before anything is built."""
    depth = count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(
                f"the alias *{event.anchor[:40]} is not taken; write the value out", event.start_mark
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        count += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            raise _Refused(f"lists and mappings are nested more than {DEEPEST} deep", event.start_mark)
        if count > MOST_NODES:
            raise _Refused(f"there are more than {MOST_NODES:,} values", event.start_mark)


def load(text: str) -> Any:
    """The value a YAML text holds. Raises `yaml.YAMLError` for what is no YAML, or not plain."""
    _check_events(text)
    return yaml.load(text, Loader=_Plain)


def read(path: str | Path, argument: str) -> Any:
    """The value a YAML file holds; one line of words, with the argument, where it cannot be taken."""
    raw = read_bytes(path, argument, MOST_BYTES)
    try:
        return load(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as trouble:
        raise BadValue(
            f"{argument}: cannot read {shown(path)}: byte {trouble.start + 1} is not UTF-8."
        ) from None
    except yaml.YAMLError as trouble:
        raise BadValue(
            f"{argument}: {shown(path)} is not a YAML file of settings: {_said(trouble)}."
        ) from None


def _said(trouble: yaml.YAMLError) -> str:
    """What a YAML error is about, in one line with its place."""
    mark = getattr(trouble, "problem_mark", None)
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    problem = getattr(trouble, "problem", None) or getattr(trouble, "reason", None) or str(trouble)
    return place + " ".join(str(problem).split())[:300]
