"""The settings of a run as options of a verb: one flag for each, and over a file what the flags say."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from regard.training.config import Optim, flat, from_yaml, settings

if TYPE_CHECKING:
    from regard.cli.parser import Parser


def add_settings(parser: Parser, less: Collection[str] = ()) -> None:
    """Declare the task, every setting but those in `less`, and `--config`."""
    known = settings()
    parser.add_argument("task", nargs="?", type=str, metavar="TASK", help=known.pop("task").metadata["help"])
    for name, one in known.items():
        if name in less:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(one.default, bool):
            # None, not False: what was not said must not override a file.
            parser.add_argument(option, action="store_true", default=None, help=one.metadata["help"])
            if one.default:
                parser.add_argument(
                    f"--no-{name}", dest=f"no_{name}", action="store_true", help=f"not --{name}"
                )
        else:
            shown = name.rpartition(".")[2].upper()
            parser.add_argument(option, type=str, metavar=shown, help=_help(one))
    parser.add_argument(
        "--config", type=str, metavar="FILE", help="settings from a YAML file; flags win over it"
    )


def given_settings(options: Namespace, less: Collection[str] = ()) -> dict[str, Any]:
    """What a file says, and over it what the flags say, by dotted name; `less` are a verb's own options."""
    given = {name: value for name, value in flat(options.as_dict()).items() if value is not None}
    values: dict[str, Any] = {}
    if "config" in given:
        values = flat(from_yaml(given["config"]))
    for name, value in given.items():
        if name.startswith("no_"):
            values |= {name.removeprefix("no_"): False} if value else {}
        elif name not in less and name != "config":
            values[name] = value
    return values


def _help(one: dataclasses.Field[Any]) -> str:
    text = str(one.metadata["help"])
    recipe = one.default is None and one.name in (
        "model", "steps", "batch_size", "accumulate", *(f.name for f in dataclasses.fields(Optim))
    )  # fmt: skip
    if recipe:
        return f"{text} (default: the task's recipe)"
    if one.default in (None, ()) or "default" in text:
        return text
    shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else one.default
    return f"{text} (default: {shown})"
