"""FSDP: each process keeps a part of every weight, of its gradient and of what the optimiser remembers about it.

A layer's weights are brought together while it computes and given up again afterwards. Between steps, and in a file,
that must not be seen: `whole` makes the tensor that one process alone would have, and `part` cuts it up again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device, processes: int, *, mixed: bool = False) -> None:
    """Share a model, which all processes have whole and alike, among them. `mixed`: it computes in bfloat16."""
    policy = MixedPrecisionPolicy()
    if mixed:
        # Inputs are left to autocast, so that what it keeps in float32 is the same with one process.
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    # About outputs that are views: whoever changed them in place would lose gradients. Losses make new tensors.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (processes,))
    for unit in units(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")


def units(model: nn.Module) -> list[nn.Module]:
    """The layers to bring together one at a time: the outermost of every `nn.ModuleList`, where that is safe.

    The rest stays together from the beginning of a forward pass to its end. So must a layer that shares a weight with
    another place, and one that may be asked for its weights before it runs: a memory begins with its own slots.
    """
    uses = _uses(model)
    found: list[nn.Module] = []
    for layer in _layers(model):
        own = _uses(layer)
        shared = any(uses[weight] > count for weight, count in own.items())
        if own and not shared and not _begins_with_weights(layer) and layer not in found:
            found.append(layer)
    return found


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def _uses(model: nn.Module) -> Counter[int]:
    """In how many modules each weight stands."""
    return Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))


def _begins_with_weights(layer: nn.Module) -> bool:
    """Whether the state before a layer's first call is made of its weights."""
    if not hasattr(layer, "initial_state"):
        return False
    learned: list[bool] = []

    def note(tensor: Tensor) -> Tensor:
        learned.append(tensor.requires_grad)
        return tensor

    try:
        layer.initial_state(1, torch.device("cpu"), torch.float32).map(note)  # type: ignore[operator]
    except NotImplementedError:  # it goes on from no state at all
        return False
    except (TypeError, AttributeError):  # a layer of the user's with another idea of states
        return True
    return any(learned)


def whole(tensor: Tensor) -> Tensor:
    """A tensor as one process alone would have it. All processes must ask together."""
    found: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


def collected(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Tensors made whole, one after the other, and where `keep` is said put aside in the machine's own memory."""
    found: dict[str, Tensor] = {}
    for name in sorted(
        tensors
    ):  # in one order everywhere: dictionaries that came from files need not have it
        made = whole(tensors[name])
        if keep:
            found[name] = made if made is tensors[name] else made.cpu()
    return found


def here(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process keeps; changes to it are changes to the tensor."""
    found: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which all processes have, cut up as `like` is; one of another shape stays as it is."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    placed = tensor.to(like.device)
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """All weights in every process, so that each can use the model on its own, as often as it likes."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in parts:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in parts:
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


@contextmanager
def unshared(model: nn.Module) -> Iterator[None]:
    """Gradients stay where they arise: they are brought together with those of a later batch."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
