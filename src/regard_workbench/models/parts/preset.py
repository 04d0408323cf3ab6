"""Presets: a model's options from a paper under one name, with the optimiser settings that the paper trains it with.

`transformer(preset=vaswani)` takes the options of the preset; options beside it, `transformer(preset=vaswani, dim=64)`,
override them. `regard train` takes the optimiser settings where neither the command nor a file gives others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regard.errors import BadValue, unknown_name


@dataclass(frozen=True)
class Preset:
    """Options of a model, and settings of the optimiser by the names of `--optim.…`."""

    options: Mapping[str, Any]
    optim: Mapping[str, Any] = field(default_factory=dict)
    peak_rate: Callable[[int, int], float] | None = None  # peak learning rate, from the width and the warm-up

    def settings(self, options: Mapping[str, Any], warmup: int | None) -> dict[str, Any]:
        """The optimiser settings for a model with these options; `warmup`: the steps asked for, None: the preset's."""
        settings = dict(self.optim)
        if self.peak_rate is not None:
            steps = settings["warmup"] if warmup is None else warmup
            settings["lr"] = self.peak_rate(int(options["dim"]), max(1, int(steps)))
        return settings


def inverse_root_peak(dim: int, warmup: int) -> float:
    """The peak of dim^−½ · min(step^−½, step · warmup^−3/2), which is reached at step = warmup."""
    return float((dim * warmup) ** -0.5)


def with_preset(
    owner: str, presets: Mapping[str, Preset], options: Mapping[str, Any]
) -> tuple[Preset | None, dict[str, Any]]:
    """The preset that options name, None if they name none, and the options with those of the preset filled in."""
    chosen = dict(options)
    name = chosen.pop("preset", None)
    if name is None:
        return None, chosen
    if not presets:
        raise BadValue(f"preset: {owner} has no presets; leave preset={name} out.")
    if name not in presets:
        raise unknown_name("preset", name, presets)
    return presets[name], {**presets[name].options, **chosen}
