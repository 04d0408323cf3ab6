"""Repairs of inputs that a model refuses, from its error message: a name, a count of placeholders, a size."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from tests.architectures.inputs import NEVER, Maker, accepted

Inputs = dict[str, Any]


def mended(message: str, model: Any, given: Inputs, maker: Maker) -> Inputs | None:
    """Repaired inputs, or the same inputs for a repaired model; None where the error does not help."""
    counted = re.search(r"tokens: (\d+), features:? ?(\d+)", message)
    if counted is not None and "input_ids" in given:
        return _placeholders(message, given, maker, int(counted[2]))
    if "get_seq_length" in message and given.get("use_cache") is None:
        return {**given, "use_cache": False}  # no layer has a cache
    return (
        _named(message, model, given, maker)
        or _sections(message, model, given)
        or _resized(message, given)
        or _repeated(message, given)
    )


def _named(message: str, model: Any, given: Inputs, maker: Maker) -> Inputs | None:
    """The same inputs and those that the error names."""
    missing = [
        name
        for name in accepted(model)
        if name not in given and name not in NEVER and re.search(rf"\b{name}\b", message)
    ]
    if "inputs_embeds" in missing and ("input_ids" in given or "input_ids" in missing):
        missing.remove("inputs_embeds")
    if "decoder_inputs_embeds" in missing and "decoder_input_ids" in missing:
        missing.remove("decoder_inputs_embeds")
    if "pixel_values" in given:
        missing = [name for name in missing if "video" not in name]
    made = {name: value for name in missing if (value := maker.make(name)) is not None}
    if "mm_token_type_ids" in made and "input_ids" in given:
        made["mm_token_type_ids"] = (given["input_ids"] == maker.find("image_token_id", default=-1)).long()
    return {**given, **made} if made else None


def _placeholders(message: str, given: Inputs, maker: Maker, count: int) -> Inputs | None:
    """A text with as many placeholders for a picture, a video or a sound as there are features of it."""
    kind = message.partition(" ")[0].lower()
    token = maker.find(*(f"{kind}_token_{end}" for end in ("id", "index")), f"{kind}_pad_token_id", default=0)
    if count > 3000:  # numbers were counted, not rows
        count //= maker.width_of_text()
    each = -(-count // maker.batch)
    if not token or each > 2000:
        return None
    ids = given["input_ids"].clone()
    ids[ids == token] = 7
    ids = torch.cat([ids[:, :3], torch.full((len(ids), each), token), ids[:, -14:]], 1)
    as_long = {
        name: torch.ones_like(ids)
        for name, value in given.items()
        if name != "input_ids" and isinstance(value, Tensor) and value.shape == given["input_ids"].shape
    }
    return {**given, **as_long, "input_ids": ids}


def _sections(message: str, model: Any, given: Inputs) -> Inputs | None:
    """Fit the sections of rotary positions of images to the size of a head."""
    found = re.search(r"split_sizes to sum exactly to (\d+) .*split_sizes=\[\d+, \d+, \d+\]", message)
    modules = [module for module in model.modules() if isinstance(getattr(module, "mrope_section", None), list)]
    if found is None or not modules:
        return None
    size = int(found[1])
    for module in modules:
        module.mrope_section = [size - 2 * (size * 3 // 8), size * 3 // 8, size * 3 // 8]
    return given


def _resized(message: str, given: Inputs) -> Inputs | None:
    """One input with one size as the error expects it."""
    for pattern, axis in (
        (r"cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", -1),
        (r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\) at non-singleton dimension (\d)", None),
        (r"to have (?P<new>\d+) channels, but got (?P<old>\d+) channels", 1),
    ):
        found = re.search(pattern, message)
        if found is None:
            continue
        old, new = int(found[1]), int(found[2])
        if found.groupdict():
            old, new = new, old
        axis = int(found[3]) if axis is None else axis
        for name, value in given.items():
            fits = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > max(axis, 1)
            if fits and value.shape[axis] == old and new > 1:
                shape = list(value.shape)
                shape[axis] = new
                return {**given, name: torch.randn(shape)}
    return None


def _repeated(message: str, given: Inputs) -> Inputs | None:
    """One input with so many rows, or so long, that a size divides it: codebooks below each other, frames of sound."""
    books = re.search(r"shape '\[-1, (\d+), \d+\]' is invalid", message)
    frames = re.search(r"(\w+)`? length (\d+) is not a multiple of (\d+)", message)
    if frames is not None and isinstance(given.get(frames[1]), Tensor):
        return {**given, frames[1]: torch.randn(*given[frames[1]].shape[:-1], 2 * int(frames[3]))}
    for name in ("decoder_input_ids", "input_ids") if books is not None else ():
        if name in given and len(given[name]) % int(books[1]):
            return {**given, name: given[name].repeat_interleave(int(books[1]), 0)}
    return None
