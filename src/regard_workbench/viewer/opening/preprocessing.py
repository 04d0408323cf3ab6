"""What a folder's preprocessor_config.json asks for, checked before a picture is brought to it.

A few bytes of it can ask for a picture of any size, or for a division by zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import BadValue
from regard_workbench.files import read_bytes

NAME = "preprocessor_config.json"
MOST_SETTINGS = 2**20  # bytes of it
MOST_PIXELS = 2**24  # of the picture that a model is given
FARTHEST = 1e9  # of a mean or a standard deviation
SIZES = ("size", "crop_size", "pad_size")


def read_settings(folder: str, picture: tuple[int, int]) -> dict[str, Any]:
    """The settings, empty where there are none; `picture`: width and height of the picture that is to be prepared."""
    try:
        settings = json.loads(read_bytes(Path(folder) / NAME, "RUN", MOST_SETTINGS))
    except (ValueError, RecursionError):  # BadValue among them: no file
        return {}
    if not isinstance(settings, dict):
        return {}
    for name in ("image_mean", "image_std"):
        _check_numbers(name, settings.get(name))
    for name in SIZES:
        check_size(f"{NAME}: {name}", settings.get(name), picture)
    return settings


def _check_numbers(name: str, given: Any) -> None:
    for number in given if isinstance(given, list) else [given]:
        if isinstance(number, (int, float)) and not abs(number) <= FARTHEST:
            raise BadValue(f"RUN: {NAME}: {name}: expected finite numbers, got one that is not, or is huge.")
        if isinstance(number, (int, float)) and name == "image_std" and number <= 0:
            raise BadValue(
                f"RUN: {NAME}: image_std: expected numbers above 0, by which pixels are divided, got {number:g}."
            )


def check_size(where: str, given: Any, picture: tuple[int, int]) -> None:
    """Refuse a size that makes more pixels of a picture than fit into memory beside a model."""
    pixels = _pixels(given, picture)
    if pixels > MOST_PIXELS:
        raise BadValue(
            f"RUN: {where} asks for a picture of more than {MOST_PIXELS / 1e6:.0f} million pixels. Correct it: models "
            "read pictures of a few hundred pixels a side."
        )


def _pixels(given: Any, picture: tuple[int, int]) -> int:
    """How many pixels a size asks for; 0 where it is none that is known."""
    short, long = sorted(max(1, side) for side in picture)
    if _is_side(given):
        return int(given) * int(given) * long // short
    if isinstance(given, list) and len(given) == 2 and all(map(_is_side, given)):
        return int(given[0]) * int(given[1])
    if not isinstance(given, Mapping):
        return 0
    sides = {str(name): int(side) for name, side in given.items() if _is_side(side)}
    areas = []
    if "shortest_edge" in sides:
        areas.append(sides["shortest_edge"] ** 2 * long // short)
    if "longest_edge" in sides:  # beside a shortest edge it is a bound
        areas.append(sides["longest_edge"] ** 2 * short // long)
    for high, wide in (("height", "width"), ("max_height", "max_width")):
        if high in sides and wide in sides:
            areas.append(sides[high] * sides[wide])
    return min(areas, default=0)


def _is_side(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given > 0
