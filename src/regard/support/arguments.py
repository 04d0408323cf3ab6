"""Checks of single arguments, with one message for each kind of mistake."""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from regard.errors import BadType, BadValue
from regard.support.differentiate import transforming

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def described(given: object) -> str:
    """A description of an argument for an error message: dtype and shape of a tensor, else value and type."""
    if isinstance(given, Tensor):
        return f"a tensor of {given.dtype} and shape {tuple(given.shape)}"
    return f"{given!r} ({type(given).__name__})"


def whole_number(argument: str, given: object, least: int | None = None) -> int:
    """An int of at least `least`."""
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        raise BadType(f"{argument}: expected a whole number, got {described(given)}.") from None
    if least is not None and number < least:
        raise BadValue(f"{argument}: expected a whole number of at least {least}, got {in_digits(number)}.")
    return number


def in_digits(number: int) -> str:
    """A whole number for a message; Python refuses to write out more than 4,300 digits."""
    return str(number) if number.bit_length() < 1024 else f"one of {number.bit_length()} bits"


def flag(argument: str, given: object) -> bool:
    """What is true or false; an array or tensor of several numbers is neither."""
    try:
        return bool(given)
    except (TypeError, ValueError, RuntimeError):
        raise BadType(f"{argument}: expected True or False, got {described(given)}.") from None


def finite_number(argument: str, given: object, above: float | None = None) -> float:
    """A finite Python number, above `above` where given."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise BadType(f"{argument}: expected a Python number, got {described(given)}.")
    try:
        number = float(given)
    except OverflowError:  # an int larger than any float
        number = math.inf
    # Comparisons instead of math.isfinite: under `torch.compile` the number may be symbolic.
    if not -math.inf < number < math.inf or (above is not None and number <= above):
        raise BadValue(
            f"{argument}: expected a finite number{'' if above is None else f' above {above:g}'}, got {given}."
        )
    return number


def not_negative(argument: str, given: object) -> float:
    """A finite Python number of 0 or more."""
    number = finite_number(argument, given)
    if number < 0:
        raise BadValue(f"{argument}: expected 0 or more, got {given}.")
    return number


def is_fake_or_meta(tensor: Tensor) -> bool:
    """Whether a tensor has a shape but no contents: a fake tensor, or one on the `meta` device."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def readable(tensor: Tensor) -> bool:
    """Whether the contents can be read without synchronizing with a GPU.

    A traced or fake tensor has no contents, and one inside `vmap` represents many.
    """
    return (
        tensor.is_cpu
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
        and not is_fake_or_meta(tensor)
        and not transforming()
    )


def names_list(argument: str, given: object) -> list[str]:
    """A list of names, as the state of a task holds it; anything else is an error."""
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadValue(f"{argument}: expected a list of names, as `state` makes it, got {described(given):.60}.")
    return list(given)


def share(argument: str, given: object) -> float:
    """A fraction from 0 (included) to 1 (excluded)."""
    fraction = finite_number(argument, given)
    if not 0 <= fraction < 1:
        raise BadValue(f"{argument}: expected a fraction from 0 (included) to 1 (excluded), got {given!r}.")
    return fraction


def alignment(align: object, offset: object = None) -> str:
    """The checked name of an alignment. An offset replaces it, so that only one of the two may be given."""
    if align not in ("bottom-right", "top-left"):
        raise BadValue(f"align: expected 'bottom-right' or 'top-left', got {align!r}.")
    if offset is not None and align != "bottom-right":
        raise BadValue(f"offset: it replaces align, so give one of them; got align={align!r} and offset={offset!r}.")
    return str(align)


def anchor(align: object, offset: object) -> tuple[str, int | None]:
    """The position of query 0 as biases and scores store it: an alignment, or an offset that replaces it."""
    checked_align = alignment(align, offset)
    return checked_align, None if offset is None else whole_number("offset", offset)


def float_tensor(argument: str, given: object) -> Tensor:
    """The given floating-point tensor itself, not a copy, so that it receives gradient."""
    if not isinstance(given, Tensor) or not given.is_floating_point():
        raise BadType(f"{argument}: expected a floating-point tensor, got {described(given)}.")
    return dense_tensor(argument, given)


def dense_tensor(argument: str, given: Tensor) -> Tensor:
    """The given tensor itself, whose numbers lie in memory one by one: none that is sparse, nested or of mkldnn."""
    if given.layout is not torch.strided or given.is_nested:
        kind = "a nested tensor" if given.is_nested else f"the layout {given.layout}"
        hint = "torch.nested.to_padded_tensor and masks.lengths" if given.is_nested else ".to_dense()"
        raise BadType(f"{argument}: expected a dense tensor, got {kind}. Try {hint}.")
    return given


def tensor_copy(
    argument: str, given: object, dtypes: tuple[torch.dtype, ...], what: str, rank: int | None = None
) -> Tensor:
    """A private copy of a tensor, which later changes of the original do not reach."""
    if not isinstance(given, Tensor):
        try:
            given = torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise BadType(f"{argument}: expected {what}, got {described(given)}.") from None
    if given.dtype not in dtypes:
        raise BadType(f"{argument}: expected {what}, got {described(given)}.")
    dense_tensor(argument, given)
    if rank is not None and given.dim() != rank:
        raise BadValue(f"{argument}: expected {what}, got {described(given)}.")
    return given.detach().clone()
