"""`replace` and `restore`: swap torch's multi-head attention for ours, and back, inside an existing model.

A layer is swapped by giving the same object another class. So every reference to it (a model that uses one layer twice,
an optimiser, a hook, a wrapper) still holds, and weights, dtype, device, training mode and hooks stay what they were.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeVar

from torch import nn

from regard.errors import BadType
from regard.interop.torch.multihead_attention import MultiheadAttention
from regard.support.arguments import described

Model = TypeVar("Model", bound=nn.Module)

# torch's own class, also where torch.nn.MultiheadAttention was set to ours.
_TORCH: type[nn.MultiheadAttention] = MultiheadAttention.__bases__[0]
_KEPT = "_regard_kept"  # where a module keeps the attributes that `replace` changed
# What sends torch's modules around their layers, to code that reads the weights of self_attn without calling it:
# the fast path of an encoder layer, and the removal of padding from the inputs of an encoder.
_SHORTCUTS: dict[type[nn.Module], tuple[str, Any]] = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


def replace(model: Model) -> Model:
    """Swap every `torch.nn.MultiheadAttention` in `model` for ours, in place, and return `model`.

    Also inside `nn.TransformerEncoder`, `nn.TransformerDecoder` and `nn.Transformer`, whose fast paths, which would
    compute attention without calling the layer, are switched off. Subclasses of torch's layer, and layers whose own
    `forward` was replaced, may compute something else. They stay as they are, and a warning names them. Compile or
    script a model after this call, not before.
    """
    _check(model)
    swapped, left = 0, []
    for name, module in model.named_modules():
        if type(module) is _TORCH and "forward" not in vars(module):
            module.__class__ = MultiheadAttention
            swapped += 1
        elif isinstance(module, MultiheadAttention):
            swapped += 1
        elif isinstance(module, _TORCH) or getattr(module, "original_name", "") == _TORCH.__name__:
            left.append(f"{name or 'the model itself'} ({type(module).__name__})")
    for module in model.modules():
        for kind, (attribute, off) in _SHORTCUTS.items():
            if isinstance(module, kind) and _KEPT not in vars(module) and _contains_ours(module):
                setattr(module, _KEPT, getattr(module, attribute))
                setattr(module, attribute, off)
    if left:
        warnings.warn(
            f"replace: left {', '.join(left)} as it is: a subclass of torch.nn.MultiheadAttention, or one with a "
            f"forward of its own, may compute something else.",
            stacklevel=2,
        )
    elif not swapped:
        warnings.warn(
            f"replace: {type(model).__name__} contains no torch.nn.MultiheadAttention, so nothing was swapped.",
            stacklevel=2,
        )
    return model


def restore(model: Model) -> Model:
    """Undo `replace`: swap our layers in `model` for torch's, in place, and return `model`."""
    _check(model)
    for module in model.modules():
        if type(module) is MultiheadAttention:
            module.__class__ = _TORCH  # type: ignore[assignment]
        for kind, (attribute, _) in _SHORTCUTS.items():
            if isinstance(module, kind) and _KEPT in vars(module):
                setattr(module, attribute, vars(module).pop(_KEPT))
    return model


def _check(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise BadType(f"model: expected a torch.nn.Module, got {described(model)}.")


def _contains_ours(module: nn.Module) -> bool:
    return any(isinstance(submodule, MultiheadAttention) for submodule in module.modules())
