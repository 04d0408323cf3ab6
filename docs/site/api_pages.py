"""The pages of the API reference: what each public module offers, by its `__all__`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

# module: names to show; None: all that it offers.
MODULES: dict[str, tuple[str, ...] | None] = {
    "regard": (
        "attend",
        "weights",
        "summarize",
        "explain",
        "observe",
        "train",
        "evaluate",
        "export",
        "compare",
        "view",
        "attack",
        "Plan",
        "Summary",
    ),
    "regard.masks": None,
    "regard.scores": None,
    "regard.biases": None,
    "regard.normalizers": None,
    "regard.nn": None,
    "regard.interop.torch": None,
    "regard.interop.huggingface": None,
    "regard.parallel": None,
    "regard.nn.sharing": ("sharing",),
    "regard.decoding": None,
    "regard.models": None,
    "regard.tasks": None,
    "regard.training": None,
    "regard_workbench.training.distributed.sharded_checkpoint": ("save", "load", "consolidate"),
    "regard_workbench.comparison.publishing": ("save_run", "push_run", "load_saved"),
    "regard.observation.seen": ("Seen", "Site"),
    "regard.viewer": None,
    "regard.errors": ("RegardError", "BadType", "BadValue", "Frozen", "Unsupported"),
}

ABOUT_THE_MODULE = """\
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false
"""


def names() -> list[str]:
    """The modules, in the order of the menu."""
    return list(MODULES)


def pages() -> Iterator[tuple[str, str]]:
    """(path on the site, text) of one page for each module."""
    for module in MODULES:
        yield f"api/{module}.md", page(module)


def page(module: str) -> str:
    """What one module offers, by mkdocstrings."""
    loaded = importlib.import_module(module)
    shown = MODULES[module] or tuple(loaded.__all__)
    parts = [f"# {module}\n", f"::: {module}\n{ABOUT_THE_MODULE}"]
    for name in shown:
        thing = getattr(loaded, name)
        if callable(thing):
            parts.append(entry(name, thing))
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """The directive for one thing, found where it is defined and shown under the name that a user imports."""
    return f"::: {path_of(thing)}\n    options:\n      heading: {name}\n      toc_label: {name}\n"


def path_of(thing: Any) -> str:
    """The path of a class or function, to which other pages link, too."""
    return f"{thing.__module__}.{thing.__qualname__}"
