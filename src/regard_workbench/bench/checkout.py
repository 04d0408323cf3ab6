"""Where the cases are: a few in this package, all of them in the folder `bench/` of a checkout."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from regard_workbench.bench.case import CASES

FAMILIES = ("dot", "overhead")  # in this package
ELSEWHERE = "{} cases come with the package; the others are in the folder bench/ of a checkout: run regard bench there."


def load_cases() -> ModuleType | None:
    """Register the cases; returns the checkout's `bench.cases`, None where there is no checkout.

    A checkout is the current folder, or where this package lies in its `src`.
    """
    for folder in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (folder / "bench" / "cases").is_dir() and (folder / "src" / "regard_workbench").is_dir():
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
            return import_module("bench.cases")
    for family in FAMILIES:
        import_module(f"regard_workbench.bench.{family}")
    return None


def elsewhere() -> str:
    """Where the cases are that this package does not have, in one line."""
    return ELSEWHERE.format(len(list(CASES)))
