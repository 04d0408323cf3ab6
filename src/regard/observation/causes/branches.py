"""Branches of a layer that write as a whole: mixtures of experts, and what else is not linear when its norms are held.

The writes of single modules add up only where nothing between them and the rows of the layer multiplies, chooses or
bends them. Whether that is so is measured: a run in which every part writes a random share of what it wrote, and one
with the rest of it, have to add up to the run with all of it and the run with none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.ablation import logits_of
from regard.observation.causes.copies import ModelCall, first_tensor, tensors_in
from regard.observation.causes.rerun import Rerun, RunRecording
from regard.observation.observer import numbered, parts_of

BENT = 1e-3  # how far an output may be from the sum, relative to its largest number
# The cosine of an input and the output above which a module passes its rows on, so that it is no branch.
STREAM = 0.5
Note = Callable[[str, nn.Module, Any, Any], None]  # the name of a call, its module, inputs and output


@contextlib.contextmanager
def watched(modules: Mapping[nn.Module, str], note: Note) -> Iterator[None]:
    """Let `note` see every call of these modules."""
    counts: dict[str, int] = {}

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        path = modules[module]
        counts[path] = counts.get(path, 0) + 1
        note(numbered(path, counts[path]), module, (args, kwargs), output)

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class CopiedOutputs:
    """Which tensors of a call's output hold the copies of an example one after the other.

    Tables for all examples do not, nor do rows that are sorted by expert, nor the rows of a single expert, whose number
    depends on what it is given.
    """

    def __init__(self, rerun: Rerun, call: ModelCall, modules: Mapping[nn.Module, str]) -> None:
        sizes: dict[str, list[int]] = {}
        self.copied: dict[str, list[bool]] = {}
        recording = RunRecording()

        def measure(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            sizes[name] = [_length(tensor) for tensor in tensors_in(output)]

        def compare(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            pairs = zip(tensors_in(output), sizes.get(name, []), strict=False)
            self.copied[name] = [_is_twice(tensor, size) for tensor, size in pairs]

        with watched(modules, measure):
            rerun.run(call, at_layers=recording.layer)
        with watched(modules, compare):
            rerun.run(call.times(2))
        self.layers = len(recording.layers)  # calls of layers in a run
        self.positions = {rows.shape[1] for rows in recording.layers.values() if rows.dim() > 2}
        self.lists = [  # within layers: of experts
            path
            for module, path in parts_of(rerun.model).items()
            if isinstance(module, _LISTS) and any(_inside(path, layer.path) for layer in rerun.layers)
        ]

    def of(self, name: str) -> list[bool]:
        """For each tensor of a call's output, whether it holds the copies one after the other."""
        return self.copied.get(name, [])

    def holds_rows(self, name: str, output: Any, copies: int = 1) -> bool:
        """Whether the first tensor of an output has all rows of every copy."""
        rows = first_tensor(output)
        if rows is None or not any(self.of(name)[:1]):
            return False
        if rows.dim() == 2 and any(_inside(name, path) for path in self.lists):
            return False
        return len(rows) == copies or (rows.dim() == 2 and len(rows) // copies in self.positions)


@dataclass(frozen=True)
class Bend:
    """A module whose output is not the sum of what the parts wrote."""

    module: nn.Module | None  # None: what follows the last layer
    path: str
    is_branch: bool  # whether it can write as a whole


def first_bends(
    run: Callable[[], Any], modules: Mapping[nn.Module, str], copied: CopiedOutputs, layers: Sequence[str]
) -> list[Bend]:
    """The module that is the first to bend what the parts wrote, with others of its class that do so; none: [].

    run: runs the model on four copies: no part, a share of each, the rest of each, and all of it.
    """
    bends: list[Bend] = []

    def judge(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        rows = first_tensor(output)
        if rows is None or not copied.holds_rows(name, output, 4) or not _is_bent(rows):
            return
        path = modules[module]
        passes_on = any(_cosine(tensor, rows) > STREAM for tensor in tensors_in(inputs))
        bends.append(Bend(module, path, path not in layers and not passes_on))

    with watched(modules, judge):
        logits = logits_of(run())
    if not bends and layers and _is_bent(logits):
        return [Bend(None, f"after {layers[-1]}", False)]
    kinds = {(type(bend.module), bend.is_branch) for bend in bends[:1]}
    return [bend for bend in bends if (type(bend.module), bend.is_branch) in kinds]


def branches_of(rerun: Rerun) -> dict[nn.Module, str]:
    """The modules within layers that hold weights and no site: each may turn out to write as a whole."""
    sites = {site.partition("#")[0] for site in rerun.sites}
    return {
        module: path
        for module, path in parts_of(rerun.model).items()
        if any(_inside(path, layer.path) for layer in rerun.layers)
        and not any(site == path or _inside(site, path) for site in sites)
        and any(True for _ in module.children())
        and any(True for _ in module.parameters())
        and not isinstance(module, _LISTS)
    }


_LISTS = (nn.ModuleList, nn.ModuleDict)


def _inside(path: str, holder: str) -> bool:
    return path.startswith(f"{holder}.")


def _length(tensor: Tensor) -> int:
    return len(tensor) if tensor.dim() else 0


def _is_twice(tensor: Tensor, size: int) -> bool:
    """Whether a tensor of two equal copies holds one after the other, where one copy has this size, or one for both."""
    if size == _length(tensor) == 1:
        return True
    if not size or _length(tensor) != 2 * size:
        return False
    first, second = tensor.detach().double().chunk(2)
    return bool((first - second).abs().max() <= BENT * first.abs().max()) if first.numel() else True


def _is_bent(tensor: Tensor) -> bool:
    """Whether the copies with a share and with the rest do not add up to those with nothing and with everything."""
    copies = tensor.detach().double().unflatten(0, (4, -1))
    copies = copies[:, copies.isfinite().all(0)]  # logits of words that are never said may be −∞
    apart = (copies[1] + copies[2] - copies[0] - copies[3]).abs()
    return bool((apart > BENT * copies.abs().max()).any()) if apart.numel() else False


def _cosine(tensor: Tensor, rows: Tensor) -> float:
    """Of the last copies of an input and an output; 0 where their sizes differ."""
    if not tensor.is_floating_point() or tensor.numel() != rows.numel():
        return 0.0
    before, after = (copies.detach().double().chunk(4)[-1].flatten() for copies in (tensor, rows))
    return float(torch.cosine_similarity(before, after, 0).abs())
