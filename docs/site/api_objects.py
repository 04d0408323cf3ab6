"""What the API pages show of a function or class: an extension of griffe, which reads the sources for mkdocstrings.

Options that are taken by name are shown instead of `**options`; docstrings become Markdown.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

import griffe
import torch

from regard import registry

LABEL = re.compile(r"^(Papers?|Empty row|When to use|Shapes): ", re.MULTILINE)


class ApiObjects(griffe.Extension):
    """Completes signatures by those of the imported functions and classes, and prepares docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Write the docstring as Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take the `__signature__` of a function, where a decorator has set one."""
        if func.decorators and isinstance(func.parent, griffe.Module):
            spelled = getattr(_imported(func), "__signature__", None)
            if isinstance(spelled, inspect.Signature):
                func.parameters = _parameters(spelled.parameters)
                func.overloads = None

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take the options of the base classes for `**options`, and the constructor of a class of torch."""
        init = cls.members.get("__init__")
        written = [one.kind for one in init.parameters] if isinstance(init, griffe.Function) else []
        if written and griffe.ParameterKind.var_keyword not in written:
            return
        thing = _imported(cls)
        if isinstance(thing, type) and issubclass(thing, torch.nn.Module):
            spelled = griffe.Function("__init__", parameters=_parameters(registry.options_of(thing, leading=0)))
            cls.set_member("__init__", spelled)


def as_markdown(docstring: str) -> str:
    """A docstring of the project with its examples fenced and its labelled lines as paragraphs."""
    blocks = re.split(r"\n[ ]*\n", inspect.cleandoc(docstring))
    return "\n\n".join(_block(block) for block in blocks)


def _block(block: str) -> str:
    if dedent(block).startswith(">>> "):
        return f"```pycon\n{dedent(block)}\n```"
    if LABEL.match(block):
        return LABEL.sub(r"\n\n**\1**: ", block).strip()
    return block


def _imported(thing: griffe.Object) -> object:
    """What the package has under the name; None where that cannot be imported here."""
    module, _, name = thing.path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _parameters(known: Mapping[str, inspect.Parameter]) -> griffe.Parameters:
    return griffe.Parameters(*(_parameter(one) for one in known.values()))


def _parameter(one: inspect.Parameter) -> griffe.Parameter:
    kind = griffe.ParameterKind(one.kind.description)
    empty = inspect.Parameter.empty
    return griffe.Parameter(
        one.name,
        kind=kind,
        annotation=None if one.annotation is empty else _words(one.annotation),
        default=None if one.default is empty else repr(one.default),
    )


def _words(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
