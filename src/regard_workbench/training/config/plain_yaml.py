"""YAML for settings: mappings, lists, text, numbers, booleans and null, of bounded size, without repeated keys.

A few hundred bytes of YAML can expand to gigabytes (aliases of aliases), override a setting by a second one of the same
name, or hold dates, sets and bytes. All of that is refused, with its line number.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from regard.errors import BadValue
from regard_workbench.files import shown
from regard_workbench.training.config.readers import LARGEST

MOST_BYTES = 256 * 1024
DEEPEST = 16  # levels of lists and mappings
MOST_NODES = 20_000

_TAG = "tag:yaml.org,2002:"
_DATE = _TAG + "timestamp"
_KNOWN = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}


class _Refused(yaml.MarkedYAMLError):
    """Something this reader does not accept, with its position."""

    def __init__(self, problem: str, mark: Any) -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _Plain(yaml.SafeLoader):
    """Builds plain values from nodes that `_check_events` accepted."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        if node.tag == _DATE:  # `name: 2024-05-01` is meant as text
            return self.construct_scalar(node)
        if node.tag not in _KNOWN:
            raise _Refused(f"expected plain values, got one of type {node.tag.removeprefix(_TAG)!r}", node.start_mark)
        try:
            plain = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError):  # `!!bool maybe`, a number of 5000 digits
            kind = node.tag.removeprefix(_TAG)
            raise _Refused(f"{str(node.value)[:40]!r} is not of type {kind}", node.start_mark) from None
        return _in_range(plain, node.start_mark)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _TAG + "merge":
                raise _Refused("`<<` is not supported; write out each setting", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise _Refused("expected the name of a setting, got a list or a mapping", key_node.start_mark)
            if key in keys:
                raise _Refused(f"{str(key)[:40]!r} is given twice; keep one of them", key_node.start_mark)
            keys.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _in_range(number: Any, mark: Any) -> Any:
    if isinstance(number, float) and not math.isfinite(number):
        raise _Refused(f"expected a finite number, got {number}", mark)
    if isinstance(number, int) and abs(number) > LARGEST:
        raise _Refused("expected a whole number of at most 63 bits, got a larger one", mark)
    return number


def _check_events(text: str) -> None:
    """Refuse aliases, deep nesting and too many nodes while parsing, before any value is built."""
    depth = count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"the alias *{event.anchor[:40]} is not supported; write out the value", event.start_mark)
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
    """Parse a YAML text; raise `yaml.YAMLError` if it is invalid or not plain."""
    _check_events(text)
    return yaml.load(text, Loader=_Plain)


def parse(raw: bytes, path: str | Path, argument: str) -> Any:
    """Parse the content of a YAML file; the error names `argument` and the file."""
    try:
        return load(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadValue(f"{argument}: cannot read {shown(path)}: byte {error.start + 1} is not UTF-8.") from None
    except yaml.YAMLError as error:
        raise BadValue(f"{argument}: {shown(path)} is not a YAML file of settings: {_message(error)}.") from None


def _message(error: yaml.YAMLError) -> str:
    """A YAML error in one line, with its position."""
    mark = getattr(error, "problem_mark", None)
    position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return position + " ".join(str(problem).split())[:300]
