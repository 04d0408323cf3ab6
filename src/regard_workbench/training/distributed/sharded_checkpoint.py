"""Sharded checkpoints by torch's DCP: every rank writes its own shards, and any number of ranks reads them.

The shards are safetensors files, so nothing in them is run when they are read. `consolidate` joins them to one file for
the weights and one for the optimiser. A run of `regard train` gathers its checkpoints in rank 0 instead; this is for
models that no single process can hold, in a training loop of one's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from regard.errors import BadValue
from regard_workbench.training import optim

_UNREADABLE = (CheckpointException, SafetensorError, OSError, ValueError, KeyError)


def save(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write the weights and the optimiser state that this rank holds. A collective; the folder must be new or empty."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise BadValue(f"folder: {folder} is not empty, and shards of two checkpoints must not mix. Take another.")
    tensors = _weights(model)
    if optimizer is not None:
        tensors |= {name: _at_least_1d(tensor) for name, tensor in optim.optimizer_state(optimizer, model).items()}
    with _quiet():
        dcp_save(tensors, storage_writer=HuggingFaceStorageWriter(path=str(folder), save_distributed=True))


def load(folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read a checkpoint into a model and its optimiser, as they are sharded now. A collective."""
    sizes = _sizes(folder)
    weights = _weights(model)
    _refuse_others({name for name in sizes if ":" not in name}, set(weights), folder)
    for name, weight in weights.items():
        if tuple(weight.shape) != sizes[name]:
            raise BadValue(f"folder: {name} in {folder} has shape {sizes[name]}, the model's {tuple(weight.shape)}.")
    state: dict[str, Tensor] = {}
    if optimizer is not None:
        parameters = dict(model.named_parameters())
        for name in (name for name in sizes if ":" in name):
            parameter = parameters.get(name.rpartition(":")[0])
            if parameter is not None and sizes[name] == tuple(parameter.shape):
                state[name] = torch.zeros_like(parameter.detach())  # sharded as the parameter is
            else:
                state[name] = torch.zeros(sizes[name])
    _read(folder, {**weights, **state})
    if optimizer is not None:
        scalars = {name: tensor.squeeze(0) if name.endswith(":step") else tensor for name, tensor in state.items()}
        optim.restore_optimizer(optimizer, model, scalars)


def consolidate(folder: str | Path, target: str | Path) -> list[Path]:
    """Join the shards to `model.safetensors` and `optimizer.safetensors` in `target`; no other process is needed."""
    full_tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in _metadata(folder).items()}
    _read(folder, full_tensors, no_dist=True)
    target = Path(target)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for file, of_optimizer in (("model.safetensors", False), ("optimizer.safetensors", True)):
        tensors = {name: tensor for name, tensor in full_tensors.items() if (":" in name) == of_optimizer}
        if tensors:
            save_file(tensors, target / file)
            written.append(target / file)
    return written


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name; one that has several names (tied weights) by the first of them."""
    state = model.state_dict()
    names, all_names = ([name for name, _ in model.named_parameters(remove_duplicate=flag)] for flag in (True, False))
    repeated = set(all_names) - set(names)
    return {name: tensor for name, tensor in state.items() if name not in repeated}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warning that there is only one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _at_least_1d(tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() else tensor[None]  # DCP reads slices, of which a single number has none


def _read(folder: str | Path, tensors: dict[str, Tensor], **options: Any) -> None:
    """Fill these tensors, or the shards of them that this rank holds."""
    try:
        with _quiet():
            dcp_load(tensors, storage_reader=HuggingFaceStorageReader(path=str(folder)), **options)
    except _UNREADABLE as error:
        raise BadValue(f"folder: {folder} cannot be read as a sharded checkpoint: {error}") from error


def _metadata(folder: str | Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """The size and the dtype of each whole tensor."""
    if not any(Path(folder).glob("*.safetensors")):
        raise BadValue(f"folder: {folder} holds no safetensors files. Expected one that `save` has written.")
    try:
        metadata = HuggingFaceStorageReader(path=str(folder)).read_metadata().state_dict_metadata
    except _UNREADABLE as error:
        raise BadValue(f"folder: {folder} cannot be read as a sharded checkpoint: {error}") from error
    tensors = {name: stored for name, stored in metadata.items() if isinstance(stored, TensorStorageMetadata)}
    return {name: (tuple(stored.size), stored.properties.dtype) for name, stored in tensors.items()}


def _sizes(folder: str | Path) -> dict[str, tuple[int, ...]]:
    return {name: size for name, (size, _) in _metadata(folder).items()}


def _refuse_others(held: set[str], wanted: set[str], folder: str | Path) -> None:
    if held != wanted:
        missing, surplus = sorted(wanted - held), sorted(held - wanted)
        raise BadValue(
            f"folder: {folder} is a checkpoint of another model. It lacks {missing[:3] or 'nothing'} and has "
            f"{surplus[:3] or 'nothing'} besides."
        )
