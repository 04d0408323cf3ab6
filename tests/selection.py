"""Which of the collected tests run: all but the `nightly` ones; with `--quick`, one case of each function."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Hashable

import pytest

# Parameters that choose another program for the same promise: `--quick` takes a case of each of their values.
PROGRAMS = ("impl", "device")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="run one case of each test function and implementation, none that is marked slow (make quick)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items
    if "nightly" not in config.option.markexpr:
        chosen = [item for item in chosen if not item.get_closest_marker("nightly")]
    if config.option.quick:
        chosen = sample([item for item in chosen if not item.get_closest_marker("slow")])
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_collection() -> None:
    """Search for no garbage while modules and tests are made: they stay until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay until the end, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let the interpreter end as usual: Triton's bindings complain of objects that are never freed."""
    gc.unfreeze()


def sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """One item of each group, the same in every run.

    The name of the group decides which: the first of each would be the same mechanism everywhere.
    """
    groups: dict[Hashable, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_group(item), []).append(item)
    chosen = {group[zlib.crc32(str(name).encode()) % len(group)] for name, group in groups.items()}
    return [item for item in items if item in chosen]


def _group(item: pytest.Item) -> Hashable:
    """The function of a test and the program that it runs on."""
    function = item.nodeid.partition("[")[0]
    case = getattr(item, "callspec", None)
    return function, *(str(case.params.get(name)) if case else None for name in PROGRAMS)
