"""FSDP: each process keeps a shard of every weight, of its gradient and of its optimiser state.

The weights of a layer are gathered while it computes and released afterwards. Checkpoints hold full tensors, as a
single process would write them: `full_tensor` gathers one, and `shard_like` shards it again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor


def shard(model: nn.Module, device: torch.device, processes: int, *, mixed: bool = False) -> None:
    """Shard a model that is equal in all processes. `mixed`: compute in bfloat16."""
    policy = MixedPrecisionPolicy()
    if mixed:
        # Inputs are left to autocast, so that it keeps the same tensors in float32 as in a single process.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # The warning is about outputs that are views and would lose gradients if changed in place. Losses do not do that.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (processes,))
    for unit in units(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")


def units(model: nn.Module) -> list[nn.Module]:
    """The layers to gather one at a time: the outermost of every `nn.ModuleList`, where that is safe.

    All other weights stay gathered during a whole forward pass. So do those of a layer that shares a weight with
    another module, and of one whose weights may be read before it runs: the initial state of a memory is a weight.
    """
    uses = _uses(model)
    safe: list[nn.Module] = []
    for layer in _layers(model):
        weights = _uses(layer)
        shared = any(uses[weight] > count for weight, count in weights.items())
        if weights and not shared and not _has_learned_state(layer) and layer not in safe:
            safe.append(layer)
    return safe


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)


def _uses(model: nn.Module) -> Counter[int]:
    """The number of modules that hold each weight."""
    return Counter(id(weight) for module in model.modules() for weight in module.parameters(recurse=False))


def _has_learned_state(layer: nn.Module) -> bool:
    """Whether the initial state of a layer depends on its weights."""
    if not hasattr(layer, "initial_state"):
        return False
    learned: list[bool] = []

    def note(tensor: Tensor) -> Tensor:
        learned.append(tensor.requires_grad)
        return tensor

    try:
        layer.initial_state(1, torch.device("cpu"), torch.float32).map(note)  # type: ignore[operator]
    except NotImplementedError:  # it has no state
        return False
    except (TypeError, AttributeError):  # a user's layer with another signature
        return True
    return any(learned)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor. A collective: all processes must call it."""
    full: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full


def gather_tensors(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather sharded tensors one after the other; with `keep`, return them, the gathered ones on the CPU."""
    gathered_tensors: dict[str, Tensor] = {}
    for name in sorted(tensors):  # the same order in all processes: dictionaries from files may differ
        full = full_tensor(tensors[name])
        if keep:
            gathered_tensors[name] = full if full is tensors[name] else full.cpu()
    return gathered_tensors


def local_shard(tensor: Tensor) -> Tensor:
    """The shard of a tensor in this process, as a view."""
    local: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor, equal in all processes, as `like` is sharded; one of another shape stays full."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    on_device = tensor.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


def sharded_like(shard: Tensor, like: Tensor) -> Tensor:
    """The tensor of which every process holds one shard, sharded as `like` is; the shard itself if `like` is not."""
    if not isinstance(like, DTensor):
        return shard
    sharded: Tensor = DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Keep all weights gathered in every process, so that each can call the model on its own."""
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(module is not model, recurse=False)
            module.reshard()


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Accumulate gradients locally; they are reduced with those of a later batch."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
