"""Rotary positions of a configuration: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regard.registry import written
from regard_workbench.models.pretrained.settings import Settings

KINDS = ("default", "linear", "llama3", "yarn")


def rotary(settings: Settings, width: int) -> str:
    """The option `positions` of a layer whose heads have this width."""
    key = next((key for key in ("rope_parameters", "rope_scaling") if settings.given(key) is not None), "rope_scaling")
    scaling = settings.given(key) or {}
    if not isinstance(scaling, Mapping):
        raise settings.wrong(key, "an object")
    scaling_settings = Settings({"rope_theta": settings.given("rope_theta"), **scaling}, {}, ())
    base = 10000.0 if scaling_settings.given("rope_theta") is None else scaling_settings.number("rope_theta")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in KINDS:
        raise settings.wrong(
            key, f"rope_type to be one of {', '.join(KINDS)}", " Others depend on the length of a text."
        )
    scaling_settings.require(partial_rotary_factor=(1, 1.0))
    settings.require(partial_rotary_factor=(1, 1.0))
    if width % 2:
        raise settings.wrong("head_dim", "an even number, because rotary positions rotate pairs of columns")
    options: dict[str, Any] = {"base": base}
    if kind != "default":
        options |= {"scaling": kind, "factor": scaling_settings.number("factor")}
    if kind in ("llama3", "yarn"):
        longest = settings.size("max_position_embeddings")
        options["length"] = scaling_settings.size_or("original_max_position_embeddings", longest)
    if kind == "llama3":
        options |= {
            "low": scaling_settings.number("low_freq_factor"),
            "high": scaling_settings.number("high_freq_factor"),
        }
    if kind == "yarn":
        options |= _yarn(scaling_settings)
    return written("rotary", options)


def _yarn(inner: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {"gain": _gain(inner), "whole": inner.given("truncate") is not False}
    for ours, theirs in (("fast", "beta_fast"), ("slow", "beta_slow")):
        if inner.given(theirs):
            options[ours] = inner.number(theirs)
    return options


def _gain(inner: Settings) -> float:
    """The factor of queries and keys."""
    if inner.given("attention_factor") is not None:
        return inner.number("attention_factor")

    def growth(share: float) -> float:
        factor = inner.number("factor")
        return 0.1 * share * math.log(factor) + 1.0 if factor > 1 else 1.0

    if inner.given("mscale") and inner.given("mscale_all_dim"):
        return growth(inner.number("mscale")) / growth(inner.number("mscale_all_dim"))
    return growth(1.0)
