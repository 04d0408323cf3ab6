"""The options of a mechanism, a model or a task as rows of a page."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any


def rows(known: Mapping[str, inspect.Parameter], meanings: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row for each option: name, type, default and, where documented, its meaning."""
    option_rows = []
    for name, parameter in known.items():
        required = parameter.default is parameter.empty
        kind = parameter.annotation
        option_rows.append(
            {
                "name": name,
                "type": "" if kind is parameter.empty else kind if isinstance(kind, str) else kind.__name__,
                "required": required,
                "default": None if required else _plain(parameter.default),
                "meaning": meanings.get(name, ""),
            }
        )
    return option_rows


def _plain(default: Any) -> Any:
    return default if isinstance(default, (bool, int, float, str, type(None))) else repr(default)
