"""The settings of a run as options of a verb: one flag for each; flags override a settings file."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from regard.errors import RegardError
from regard_workbench.training.config import Optim, flat, from_yaml, settings

if TYPE_CHECKING:
    from regard_workbench.cli.common.parser import Parser


def add_settings(parser: Parser, less: Collection[str] = ()) -> None:
    """Declare the task, every setting except those in `less`, and `--config`."""
    from regard_workbench import models, tasks

    declared = settings()
    parser.hint = partial(_misplaced, parser)
    parser.add_to_epilog(
        f"tasks: {', '.join(tasks.names())}",
        f"models: {', '.join(models.names())}",
        "`regard show NAME` explains one of them, with its options.",
    )
    parser.add_argument("task", nargs="?", type=str, metavar="TASK", help=declared.pop("task").metadata["help"])
    for name, setting in declared.items():
        if name in less:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(setting.default, bool):
            # None, not False: a flag that was not given must not override the file.
            parser.add_argument(option, action="store_true", default=None, help=setting.metadata["help"])
            if setting.default:
                parser.add_argument(f"--no-{name}", dest=f"no_{name}", action="store_true", help=f"not --{name}")
        else:
            shown = name.rpartition(".")[2].upper()
            parser.add_argument(option, type=str, metavar=shown, help=_help(setting))
    bad = "at a picture that cannot be read: stop (the default), or skip it and say so; an option of the task"
    parser.add_argument("--bad-files", choices=["stop", "skip"], help=bad)
    parser.add_argument("--config", type=str, metavar="FILE", help="settings from a YAML file; flags win over it")


def given_settings(options: Namespace, less: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a file, overridden by flags, by dotted name; `less` are the verb's own options."""
    flags = {name: value for name, value in flat(options.as_dict()).items() if value is not None}
    values: dict[str, Any] = {}
    if "config" in flags:
        values = flat(from_yaml(flags["config"]))
    for name, value in flags.items():
        if name.startswith("no_"):
            values |= {name.removeprefix("no_"): False} if value else {}
        elif name not in less and name not in ("config", "bad_files"):
            values[name] = value
    if "bad_files" in flags:
        from regard_workbench.tasks.formats.bad_files import task_with

        values["task"] = task_with(values.get("task", ""), flags["bad_files"])
    return values


def _misplaced(parser: Parser, option: str, value: str) -> str:
    """How to pass an unknown option that belongs to the task or the model; else empty."""
    from regard.registry import options_of, parse
    from regard_workbench.models.parts.model import MODELS
    from regard_workbench.tasks.parts.task import TASKS, typed

    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")

    def spelled(text: str) -> tuple[str, dict[str, Any]]:
        try:
            return parse(text)
        except RegardError:
            return "", {}

    def with_it(text: str) -> str:
        owner, options = spelled(text)
        return typed(owner, {**options, name: _plain(value or "VALUE")})

    task = next((word for word in parser.words if spelled(word)[0] in TASKS), None)
    if task is None:
        return ""
    cls = TASKS[spelled(task)[0]]
    if name in inspect.signature(cls).parameters:
        return f" It belongs to the task: {with_it(task)}."
    candidates = [
        after for word, after in zip(parser.words, parser.words[1:], strict=False) if word in ("--model", "--models")
    ]
    model = next((text for text in (*candidates, cls.recipe.model) if spelled(text)[0] in MODELS), None)
    if model is not None and name in options_of(MODELS[spelled(model)[0]], 1):
        return f" It belongs to the model: --model {with_it(model)}."
    return ""


def _plain(value: str) -> object:
    """A typed value as a number where it is one, else as text."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def _help(one: dataclasses.Field[Any]) -> str:
    text = str(one.metadata["help"])
    recipe = one.default is None and one.name in (
        "model",
        "steps",
        "batch_size",
        "accumulate",
        *(f.name for f in dataclasses.fields(Optim)),
    )
    if recipe:
        return f"{text} (default: the task's recipe)"
    if one.default in (None, ()) or "default" in text:
        return text
    shown = ",".join(map(str, one.default)) if isinstance(one.default, tuple) else one.default
    return f"{text} (default: {shown})"
