"""Names say what a thing is: words that say nothing are counted room by room, and the counts may only fall."""

import ast
import functools
import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("regard", "regard_fast", "regard_workbench")
BASELINE = Path(__file__).with_name("names_of_locals.json")
EMPTY = {
    *(
        "found",
        "one",
        "given",
        "asked",
        "made",
        "own",
        "taken",
        "known",
        "begun",
        "whole",
        "part",
        "parts",
        "seen",
        "rest",
    ),
    *("other", "others", "each", "what", "held", "said", "here", "there", "inner", "outer", "now", "told"),
}


def empty_names(text: str) -> list[str]:
    """The names of `EMPTY` that a source binds as variables, once for each binding."""
    return [
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY
    ]


@functools.cache
def counts() -> dict[str, int]:
    """How many such bindings each room has, where there are any."""
    by_room: Counter[str] = Counter()
    for package in PACKAGES:
        folder = ROOT / "src" / package
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).parts
            room = "/".join((package, *parts[:1])) if len(parts) > 1 else package
            by_room[room] += len(empty_names(path.read_text(encoding="utf-8")))
    return {room: count for room, count in sorted(by_room.items()) if count}


def test_variables_are_counted_and_other_names_are_not():
    source = "found = 1\nfor one, part in what(found):\n    self.made = [x for rest in part]\ndef given(held): pass\n"
    assert sorted(empty_names(source)) == ["found", "one", "part", "rest"]


@pytest.mark.parametrize("room", sorted(counts().keys() | json.loads(BASELINE.read_text()).keys()))
def test_a_room_binds_no_more_empty_names_than_before(room):
    """Think of the noun: `weights`, `plan`, `rows`, not `found`. A room with fewer lowers its number in the file."""
    now, before = counts().get(room, 0), json.loads(BASELINE.read_text()).get(room, 0)
    assert now <= before, f"{room}: {now} variables are called {', '.join(sorted(EMPTY))}; {before} were before"
    assert now == before, f"write {now} for {room} into {BASELINE.name}"
