"""`observe`: a context that captures everything a model attends to while it runs unchanged."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from regard.errors import BadType, BadValue
from regard.observation.capture.storage import Storage
from regard.observation.observer import Observer, parts_of
from regard.observation.pages import opener
from regard.support.argument_types import ArgumentTypes
from regard.support.arguments import whole_number


def observe(
    model: nn.Module | str | Path | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    copy: bool = False,
    calls: int | None = None,
    gradients: bool = False,
) -> Observer:
    """Observe what a model attends to. It runs unchanged, on the same kernels, with the same bits.

        >>> import torch, regard
        >>> model = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
        >>> with regard.observe(model) as seen:
        ...     _ = model(torch.randn(1, 7, 16))
        >>> seen.names()
        ['self_attn']
        >>> seen["self_attn"].weights(rows=[0, 6], heads=[1]).shape
        torch.Size([1, 1, 2, 7])

    Stored are references to queries, keys and masks, never a map of weights; weights are computed when asked for.

    Args:
        model: any torch module; None captures every attention call of the block. A path is the folder of a Hugging Face
            model, a text that or its name in the Hub's cache; it is loaded, and `seen.model` is to be run.
        device: where captured tensors are stored, for instance "cpu" to spare a GPU's memory. None: where they are.
        dtype: in which precision they are stored, for instance torch.float16. None: their own.
        copy: store copies, so that nothing the model does later can change them.
        calls: store only the last so many calls of each site. None: all.
        gradients: also store what `seen.gradient` needs.
    """
    arguments = {"model": model, "device": device, "dtype": dtype, "copy": copy, "calls": calls, "gradients": gradients}
    _TYPES.check((), arguments)
    if isinstance(model, (str, Path)):
        model = opener("open_named")(str(model))
    assert model is None or isinstance(model, nn.Module)
    if model is not None:
        _refuse_hidden(model)
    if calls is not None:
        whole_number("calls", calls, 1)
    if dtype is not None and not dtype.is_floating_point:
        raise BadType(f"dtype: expected a floating dtype such as torch.float16, got {dtype}.")
    storage = Storage(None if device is None else torch.device(device), dtype, copy)
    return Observer(model, storage, calls, gradients, warns=True)


_TYPES = ArgumentTypes(observe)


def _refuse_hidden(model: nn.Module) -> None:
    """Refuse compiled and scripted modules, whose calls do not pass through Python."""
    if isinstance(model, torch.jit.ScriptModule):
        raise BadValue("model: a scripted module runs outside Python and cannot be observed; pass the original.")
    for module, path in parts_of(model).items():
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None:
            where = f"its part {path!r}" if path else "it"
            raise BadValue(
                f"model: {where} is compiled, and what happens inside a compiled graph cannot be observed without "
                f"changing it. Pass the model as it was before torch.compile (compiled._orig_mod)."
            )
