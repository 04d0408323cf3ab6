"""Validate the contents of a checkpoint: names, types, shapes and ranges of everything that is read from one.

A matching checksum does not mean that a file fits this run. Fused kernels trust the sizes they are given, so everything
is compared with what the run itself would have written before a kernel or the loop uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue

LARGEST = 2**63 - 1  # of a counter
LARGEST_NUMBER = 1e300  # an int larger than every float cannot be compared with one
SHARED = 64  # one tensor may have this many names in a model, of which a file keeps one
WORDS = 624  # in the state of the Mersenne twister of Python and NumPy
SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  # of loss scaling

# The state of an optimiser for each parameter, besides its number of steps; True: never negative.
OPTIMIZER_STATE: dict[str, dict[str, bool]] = {
    "AdamW": {"exp_avg": False, "exp_avg_sq": True},
    "SGD": {},
    "RMSprop": {"square_avg": True, "momentum_buffer": False},
}


def check_state(state: Any, step: int) -> dict[str, Any]:
    """Validate the `state.json` of a checkpoint of this step; the `BadValue` names the invalid entry."""
    _expect(isinstance(state, dict), "state.json", "an object", state)
    progress = state.get("progress")
    _expect(isinstance(progress, dict), "progress", "an object", progress)
    _expect(_whole(progress.get("step")) and progress["step"] == step, "progress.step", str(step), progress.get("step"))
    for name in ("batches", "tokens", "stale"):
        _expect(_whole(progress.get(name, 0)), f"progress.{name}", "a whole number from 0", progress.get(name))
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


def check_optimizer(rule: str, state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Raise unless an optimiser state fits the parameters. `rule`: the name of the optimiser's class."""
    wanted = next((pieces for name, pieces in OPTIMIZER_STATE.items() if name in rule), None)
    if wanted is None:  # a user's optimiser, whose state is unknown
        return
    state_pieces: dict[str, set[str]] = {}
    for name, tensor in state.items():
        parameter, _, piece = name.rpartition(":")
        if parameter not in parameters:
            raise BadValue(
                f"resume: the checkpoint's optimiser state is for {parameter or name}, which this model does not have."
            )
        state_pieces.setdefault(parameter, set()).add(piece)
        if piece == "step":
            fits = tensor.numel() == 1 and not tensor.is_complex() and 0 <= float(tensor) <= LARGEST
            _expect(fits, f"resume: {name}", "one number of steps", _described(tensor))
            continue
        _expect(piece in wanted, f"resume: {name}", f"one of step, {', '.join(wanted)} of {rule}", piece)
        _floats(f"resume: {name}", tensor, parameters[parameter].shape)
        non_negative = wanted[piece]
        _expect(not non_negative or not bool((tensor < 0).any()), f"resume: {name}", "no number below 0", "one")
    for parameter, pieces in state_pieces.items():
        missing = {"step", *wanted} - pieces
        _expect(not missing, f"resume: {parameter}", f"a complete {rule} state", f"none of {', '.join(missing)}")


def check_weights(where: str, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], learned: set[str]) -> None:
    """Raise unless weights and buffers match a model in name, shape and dtype, and the `learned` ones are finite."""
    missing, surplus = [n for n in wanted if n not in weights], [n for n in weights if n not in wanted]
    if missing or surplus:
        raise BadValue(
            f"{where}: these weights belong to another model: {len(missing)} missing ({', '.join(missing[:3])}), "
            f"{len(surplus)} left over ({', '.join(surplus[:3])})."
        )
    for name, tensor in wanted.items():
        stored = weights[name]
        if stored.shape != tensor.shape:
            raise BadValue(f"{where}: {name} is {tuple(stored.shape)}, the model's {tuple(tensor.shape)}.")
        same_kind = stored.dtype == tensor.dtype or (stored.is_floating_point() and tensor.is_floating_point())
        if not same_kind:
            raise BadValue(f"{where}: {name} holds {stored.dtype}, the model's {tensor.dtype}.")
        if name in learned:
            _floats(f"{where}: {name}", stored, tensor.shape)


def check_sizes(where: str, weights: Mapping[str, Tensor], outline: Mapping[str, Tensor]) -> None:
    """Raise if a model would have other sizes than its weights. `outline`: its tensors on the meta device."""
    for name, stored in weights.items():
        if name in outline and outline[name].shape != stored.shape:
            wanted = tuple(outline[name].shape)
            raise BadValue(f"{where}: {name} is {tuple(stored.shape)}, the model's {wanted}.")
    needed = sum(tensor.numel() for tensor in outline.values())
    count = sum(tensor.numel() for tensor in weights.values())
    if needed > SHARED * max(count, 1):
        raise BadValue(f"{where}: these weights have {count:,} numbers, the model {needed:,}. It is another model.")


def check_random(tensors: Mapping[str, Tensor], plain: Any) -> None:
    """Raise unless these are states of the random generators of a run."""
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
        _expect(fits, f"random: {name}", f"{length} words of 32 bits", _described(words))
    _expect(int(tensors["python"][-1]) <= WORDS, "random: python", f"an index up to {WORDS}", "a larger one")
    current = torch.get_rng_state()
    for name, tensor in tensors.items():
        if name == "torch" or name.startswith("cuda."):
            fits = tensor.dtype == torch.uint8 and tensor.dim() == 1
            fits = fits and (name != "torch" or tensor.shape == current.shape)
            _expect(fits, f"random: {name}", "bytes, as many as a generator has", _described(tensor))
    _expect("torch" in tensors, "random: torch", "the state of torch's generator", None)


def _floats(name: str, tensor: Tensor, shape: torch.Size) -> None:
    _expect(tensor.shape == shape, name, f"the shape {tuple(shape)} of its parameter", tuple(tensor.shape))
    _expect(tensor.is_floating_point(), name, "floating-point numbers", tensor.dtype)
    # Squares may overflow float16 in a run that is still valid.
    invalid = tensor.isnan() if tensor.dtype == torch.float16 else ~tensor.isfinite()
    _expect(not bool(invalid.any()), name, "finite numbers", f"{int(invalid.sum())} that are non-finite")


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


def _described(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _expect(right: bool, name: str, wanted: str, got: object, show: Callable[[object], str] = repr) -> None:
    if not right:
        text = got if isinstance(got, str) and " " in got else show(got)
        raise BadValue(f"{name}: expected {wanted}, got {text[:60]}.")
