"""What a checkpoint may hold: the names, kinds, shapes and ranges of everything that is read back from one.

A checksum says that a file is what somebody wrote, not that it fits. Fused kernels trust the sizes they are given, so
nothing reaches them, or the loop's counters, before it was compared with what the run itself would have written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue

LARGEST = 2**63 - 1  # of a counter
LARGEST_NUMBER = 1e300  # an int beyond every float could not be compared with one
SHARED = 64  # one tensor may stand under so many names, of which a file keeps one
WORDS = 624  # of the Mersenne twister that Python and NumPy draw from
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  # of the loss

# What an optimiser remembers of a parameter besides its number of steps; True: never below zero.
MEMORY: dict[str, dict[str, bool]] = {
    "AdamW": {"exp_avg": False, "exp_avg_sq": True},
    "RMSprop": {"square_avg": True, "momentum_buffer": False},
}


def of_state(state: Any, step: int) -> dict[str, Any]:
    """The state of a checkpoint of this step, checked; `BadValue` names the place that cannot be right."""
    _expect(isinstance(state, dict), "state.json", "an object", state)
    progress = state.get("progress")
    _expect(isinstance(progress, dict), "progress", "an object", progress)
    _expect(
        _whole(progress.get("step")) and progress["step"] == step,
        "progress.step",
        str(step),
        progress.get("step"),
    )
    for name in ("batches", "tokens", "stale"):
        _expect(
            _whole(progress.get(name, 0)), f"progress.{name}", "a whole number from 0", progress.get(name)
        )
    seconds = progress.get("seconds", 0.0)
    _expect(_number(seconds) and seconds >= 0, "progress.seconds", "a number from 0", seconds)
    for name in ("best", "best_loss"):
        value = progress.get(name)
        _expect(value is None or _number(value), f"progress.{name}", "a number or null", value)
    best = progress.get("best_step")
    fits = best is None or (_whole(best) and best <= step)
    _expect(fits, "progress.best_step", f"a step up to {step} or null", best)
    _numbers(progress.get("metrics", {}), "progress.metrics")
    pending = progress.get("pending")
    if pending is not None:
        _numbers(pending, "progress.pending")
        _expect(pending.get("step") == step, "progress.pending.step", str(step), pending.get("step"))
    for name in ("task", "random", "scaler", "settings", "metrics"):
        value = state.get(name)
        _expect(value is None or isinstance(value, dict), name, "an object or null", value)
    if scaler := state.get("scaler"):
        for name in SCALER:
            value = scaler.get(name)
            _expect(_number(value) and value >= 0, f"scaler.{name}", "a number from 0", value)
    checked: dict[str, Any] = state
    return checked


def of_memory(rule: str, memory: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Raise unless what an optimiser remembered fits the parameters it is to change."""
    wanted = next((pieces for name, pieces in MEMORY.items() if name in rule), None)
    if wanted is None:  # a rule of the user's: nothing is known of its pieces
        return
    seen: dict[str, set[str]] = {}
    for name, tensor in memory.items():
        parameter, _, piece = name.rpartition(":")
        if parameter not in parameters:
            raise BadValue(
                f"resume: the checkpoint's optimiser knows {parameter or name}, which this model does not have."
            )
        seen.setdefault(parameter, set()).add(piece)
        if piece == "step":
            fits = tensor.numel() == 1 and not tensor.is_complex() and 0 <= float(tensor) <= LARGEST
            _expect(fits, f"resume: {name}", "one number of steps", _words(tensor))
            continue
        _expect(piece in wanted, f"resume: {name}", f"one of step, {', '.join(wanted)} of {rule}", piece)
        _floats(f"resume: {name}", tensor, parameters[parameter].shape)
        least_zero = wanted[piece]
        _expect(not least_zero or not bool((tensor < 0).any()), f"resume: {name}", "no number below 0", "one")
    for parameter, pieces in seen.items():
        missing = {"step", *wanted} - pieces
        _expect(
            not missing, f"resume: {parameter}", f"its {rule} memory whole", f"none of {', '.join(missing)}"
        )


def of_weights(
    where: str, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], learned: set[str]
) -> None:
    """Raise unless weights and kept buffers are those of a model: by name, shape, kind; the `learned` ones finite."""
    missing, surplus = [n for n in wanted if n not in weights], [n for n in weights if n not in wanted]
    if missing or surplus:
        raise BadValue(
            f"{where}: these weights belong to another model: {len(missing)} missing ({', '.join(missing[:3])}), "
            f"{len(surplus)} left over ({', '.join(surplus[:3])})."
        )
    for name, tensor in wanted.items():
        given = weights[name]
        if given.shape != tensor.shape:
            raise BadValue(f"{where}: {name} is {tuple(given.shape)}, the model's {tuple(tensor.shape)}.")
        alike = given.dtype == tensor.dtype or (given.is_floating_point() and tensor.is_floating_point())
        if not alike:
            raise BadValue(f"{where}: {name} holds {given.dtype}, the model's {tensor.dtype}.")
        if name in learned:
            _floats(f"{where}: {name}", given, tensor.shape)


def of_sizes(where: str, weights: Mapping[str, Tensor], outline: Mapping[str, Tensor]) -> None:
    """Raise where a model would be of another size than its weights. `outline`: its tensors, without their numbers."""
    for name, given in weights.items():
        if name in outline and outline[name].shape != given.shape:
            wanted = tuple(outline[name].shape)
            raise BadValue(f"{where}: {name} is {tuple(given.shape)}, the model's {wanted}.")
    most = sum(tensor.numel() for tensor in outline.values())
    held = sum(tensor.numel() for tensor in weights.values())
    if most > SHARED * max(held, 1):
        raise BadValue(
            f"{where}: these weights have {held:,} numbers, the model {most:,}. It is another model."
        )


def of_random(tensors: Mapping[str, Tensor], plain: Any) -> None:
    """Raise unless these are states of the generators a run draws from."""
    _expect(isinstance(plain, dict), "random", "an object", plain)
    python, numpy = plain.get("python"), plain.get("numpy")
    _expect(isinstance(python, dict) and isinstance(numpy, dict), "random", "python and numpy", plain)
    gauss = python.get("gauss", "no value")
    _expect(python.get("version") == 3, "random.python.version", "3", python.get("version"))
    _expect(gauss is None or _number(gauss), "random.python.gauss", "a number or null", gauss)
    _expect(numpy.get("name") == "MT19937", "random.numpy.name", "'MT19937'", numpy.get("name"))
    for name, most in (("place", WORDS), ("has_gauss", 1)):
        value = numpy.get(name)
        _expect(_whole(value) and value <= most, f"random.numpy.{name}", f"from 0 to {most}", value)
    _expect(_number(numpy.get("cached")), "random.numpy.cached", "a number", numpy.get("cached"))
    for name, length in (("python", WORDS + 1), ("numpy", WORDS)):
        words = tensors.get(name)
        fits = words is not None and words.dtype == torch.int64 and words.shape == (length,)
        if fits and words is not None:
            fits = bool(((words >= 0) & (words < 2**32)).all())
        _expect(fits, f"random: {name}", f"{length} words of 32 bits", _words(words))
    _expect(int(tensors["python"][-1]) <= WORDS, "random: python", f"a place up to {WORDS}", "a later one")
    own = torch.get_rng_state()
    for name, tensor in tensors.items():
        if name == "torch" or name.startswith("cuda."):
            fits = tensor.dtype == torch.uint8 and tensor.dim() == 1
            fits = fits and (name != "torch" or tensor.shape == own.shape)
            _expect(fits, f"random: {name}", "bytes, as many as a generator has", _words(tensor))
    _expect("torch" in tensors, "random: torch", "the state of torch's generator", None)


def _floats(name: str, tensor: Tensor, shape: torch.Size) -> None:
    _expect(tensor.shape == shape, name, f"the shape {tuple(shape)} of its parameter", tuple(tensor.shape))
    _expect(tensor.is_floating_point(), name, "floating-point numbers", tensor.dtype)
    # A square may overflow float16 in a run that is still sound.
    strange = tensor.isnan() if tensor.dtype == torch.float16 else ~tensor.isfinite()
    _expect(not bool(strange.any()), name, "finite numbers", f"{int(strange.sum())} that are non-finite")


def _numbers(values: Any, name: str) -> None:
    _expect(isinstance(values, dict), name, "an object", values)
    for key, value in values.items():
        _expect(value is None or _number(value), f"{name}.{key}", "a number or null", value)


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= LARGEST_NUMBER and math.isfinite(value)


def _words(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _expect(right: bool, name: str, wanted: str, got: object, show: Callable[[object], str] = repr) -> None:
    if not right:
        text = got if isinstance(got, str) and " " in got else show(got)
        raise BadValue(f"{name}: expected {wanted}, got {text[:60]}.")
