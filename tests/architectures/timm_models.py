"""Every family of the installed timm: the smallest model of each of its modules."""

from __future__ import annotations

from typing import Any

import torch

from tests.architectures.building import Built, NotBuilt, attempt
from tests.architectures.huggingface import Check


def names() -> list[str]:
    """The modules that timm registers models from."""
    import timm

    return list(timm.list_modules()) if hasattr(timm, "list_modules") else list(timm.models.list_modules())


def build(name: str, attend: str | None, check: Check, reasons: list[str]) -> Built:
    """The first of a module's models, from few parameters to many, that attends; else the smallest that runs."""
    import timm

    spare: Built | None = None
    for model_name in _by_size(name, reasons)[:3]:
        torch.manual_seed(0)
        model = attempt(lambda one=model_name: timm.create_model(one, pretrained=False).eval(), model_name, reasons)
        if model is None:
            continue
        size = model.default_cfg.get("input_size") or (3, 224, 224)
        given = {"*": (torch.randn(1, *size),)}
        built = attempt(lambda: Built(model, given, model_name, 0, check(model, given)), model_name, reasons)  # noqa: B023
        if built is not None and built.calls:
            return built
        spare = spare or built
    if spare is None:
        raise NotBuilt(reasons)
    return spare


def _by_size(name: str, reasons: list[str]) -> list[str]:
    """Models of a module, smaller ones first: the likely ones by their names, then by their parameters and pixels.

    Where parts of some are called attention, those: a family may attend in its larger models only.
    """
    import timm

    sizes: dict[str, tuple[bool, int]] = {}
    hints = (
        "test",
        "atto",
        "femto",
        "pico",
        "nano",
        "xxs",
        "xx_small",
        "_xs",
        "_t",
        "tiny",
        "_s",
        "small",
        "050",
        "_0",
    )
    for model_name in sorted(
        timm.list_models(module=name),
        key=lambda one: next((at for at, hint in enumerate(hints) if hint in one), len(hints)),
    ):
        with torch.device("meta"):
            model: Any = attempt(lambda one=model_name: timm.create_model(one, pretrained=False), model_name, reasons)
        if model is not None:
            pixels = (model.default_cfg.get("input_size") or (3, 224, 224))[-1]
            attends = any("att" in type(part).__name__.lower() for part in model.modules())
            sizes[model_name] = (not attends, sum(one.numel() for one in model.parameters()) * pixels**2)
        if len(sizes) >= 12 or sum(not plain for plain, _ in sizes.values()) >= 4:
            break
    return sorted(sizes, key=sizes.__getitem__)
