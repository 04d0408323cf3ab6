"""What `regard list` says of each name, written down: listing and looking up a name import neither torch nor the rooms.

`inventory.json` is written from the things themselves by `python -m regard_workbench.cli.common.inventory`; a test
compares both. Where a room has other files, or a file of the user registered something, the things are asked instead.
"""

from __future__ import annotations

import json
import pkgutil
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench import plugins
from regard_workbench.cli.common.mistakes import nearest

MECHANISMS = "mechanisms"
MODELS_AND_TASKS = ("models", "tasks")
VALUES = ("masks", "scores", "biases", "normalizers", "positions", "implementations")
KINDS = (MECHANISMS, *MODELS_AND_TASKS, *VALUES)
# Rooms whose files register names: the package, the module of the registry, and what it is called there.
REGISTRIES = {
    "mechanisms": ("regard.nn", "regard.nn.parts.mechanism", "MECHANISMS"),
    "models": ("regard_workbench.models", "regard_workbench.models.parts.model", "MODELS"),
    "tasks": ("regard_workbench.tasks", "regard_workbench.tasks.parts.task", "TASKS"),
}
COST_LETTERS = "n queries, m keys or slots, d width, w window, s segment, N×M memory"
FILE = Path(__file__).with_suffix(".json")

Row = dict[str, Any]


class Address(NamedTuple):
    """The kind and the canonical name of a thing, and the options that were given with it."""

    kind: str
    name: str
    options: dict[str, Any]


def rows_of(kind: str) -> list[Row]:
    """One row for each thing of a kind, in the order in which it is listed."""
    if _is_complete(kind):
        rows: list[Row] = _recorded()["rows"][kind]
        return rows
    from regard_workbench.cli.common.catalogue import rows_of_things

    return rows_of_things(kind)


def names_of(kind: str) -> dict[str, str]:
    """The names and aliases of a kind, each with the name it stands for."""
    if _is_complete(kind):
        return {spelled: row["name"] for row in rows_of(kind) for spelled in (row["name"], *row.get("aliases", ()))}
    _, home, registry = REGISTRIES[kind]
    things = getattr(import_module(home), registry)
    return {spelled: name for name in things for spelled in (name, *getattr(things[name], "aliases", ()))}


def address_of(asked: str) -> Address:
    """The address of `local`, `local(window=9)`, `masks.causal`, `models.ntm`.

    Without a kind, mechanisms come first, then models and tasks, then masks, scores, biases and normalisers.
    """
    kind, dot, plain_name = asked.partition(".")
    if dot and kind == MECHANISMS:
        return address_of(plain_name)
    kinds, spelled = ((kind,), plain_name) if dot and kind in KINDS else (KINDS, asked)
    parsed = spelled.endswith(")") and kinds[0] not in VALUES
    plain, options = parse(spelled) if parsed else (spelled, {})
    for kind in kinds:
        names = {name.replace("_", "-"): canonical for name, canonical in names_of(kind).items()}
        name = names.get((spelled if kind in VALUES else plain).replace("_", "-"))
        if name is not None:
            return Address(kind, name, options)
    raise BadValue(
        f"NAME: there is no {asked!r}.{nearest(asked, _known())} `regard list` shows the mechanisms, "
        f"`regard list KIND` the {', '.join(KINDS[1:])}."
    )


def _known() -> list[str]:
    """Every name that `address_of` takes; those of values, models and tasks also with their kind in front."""
    pieces = [(kind, name) for kind in KINDS[1:] for name in names_of(kind)]
    return list(dict.fromkeys([*names_of(MECHANISMS), *(name for _, name in pieces), *map(".".join, pieces)]))


def _is_complete(kind: str) -> bool:
    """Whether the recorded rows are all there is of a kind."""
    if kind not in REGISTRIES:
        return True
    package, home, registry = REGISTRIES[kind]
    if plugins.loaded():
        return False
    if home in sys.modules:
        return set(getattr(sys.modules[home], registry).names()) == {row["name"] for row in _recorded()["rows"][kind]}
    files: list[str] = _recorded()["files"][package]
    return files_of(package) == files


def files_of(package: str) -> list[str]:
    """The modules that stand in the folder of a package."""
    spec = find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    return sorted(module.name for module in pkgutil.iter_modules(places or ()) if not module.ispkg)


@cache
def _recorded() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return recorded


def written() -> str:
    """The text of `inventory.json`, from the things themselves: a line for each."""
    from regard_workbench.cli.common.catalogue import rows_of_things

    files = {package: files_of(package) for package, _, _ in REGISTRIES.values()}
    lines = [f'{{"files": {json.dumps(files)},', '"rows": {']
    for kind in KINDS:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows_of_things(kind))
        lines.append(f'"{kind}": [\n{rows}\n]' + ("}}" if kind == KINDS[-1] else ","))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
