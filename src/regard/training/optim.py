"""The optimiser: which weights decay, how the learning rate moves, and the optimiser's memory as named tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard.training.config import Optim
from regard.training.cuda_graph.rmsprop import SkippableRMSprop
from regard.training.distributed.sharding import part
from regard.training.run_folder import schema

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of parameters: matrices, which decay, and the rest (norms, biases, embeddings, vectors)."""
    still: set[int] = set()
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag, *_NORMS)):
            still |= {id(parameter) for parameter in module.parameters(recurse=False)}
    decaying: list[nn.Parameter] = []
    resting: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rests = id(parameter) in still or parameter.dim() < 2 or name.endswith("bias")
            (resting if rests else decaying).append(parameter)
    made = [{"params": decaying, "weight_decay": weight_decay}, {"params": resting, "weight_decay": 0.0}]
    return [group for group in made if group["params"]]


def build(model: nn.Module, optim: Optim, *, captured: bool = False) -> torch.optim.Optimizer:
    """The optimiser. `captured`: one that can run inside a CUDA graph, with its learning rate on the device."""
    assert optim.lr is not None
    given = groups(model, optim.weight_decay)
    if not given:
        raise BadValue("model: it has no parameters to train.")
    rate = torch.tensor(optim.lr, device=given[0]["params"][0].device)
    if optim.optimizer == "rmsprop":
        # With the constants of Graves 2013, section 4.2, as Neural Turing Machines are trained. No decay: in RMSprop it
        # is a gradient like any other, and is scaled up where the true one is small.
        plain = [{"params": group["params"]} for group in given]
        kind = SkippableRMSprop if captured else torch.optim.RMSprop
        return kind(plain, lr=rate if captured else optim.lr, alpha=0.95, momentum=0.9)
    if captured:
        return torch.optim.AdamW(given, lr=rate, betas=optim.betas, fused=True, capturable=True)
    where = {p.device.type for group in given for p in group["params"]}
    # One kernel for all parameters: for small models the update is otherwise a visible part of a step.
    fused = where <= {"cpu", "cuda"} and all(
        p.is_floating_point() for group in given for p in group["params"]
    )
    return torch.optim.AdamW(given, lr=optim.lr, betas=optim.betas, fused=fused)


def rate(optim: Optim, step: int, steps: float) -> float:
    """The learning rate of step `step`, counted from 0, in a run of `steps` (as many as are expected by then).

    It rises in a line over `warmup` steps, and then

        cosine        falls as half a cosine, to 0 after the last step
        inverse-root  falls as √(warmup / step)
        constant      stays
    """
    assert optim.lr is not None
    warmup = optim.warmup or 0
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    if optim.schedule in (None, "cosine"):  # None: settings that no recipe has completed
        done = (step - warmup) / max(1, steps - warmup)
        return optim.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    if optim.schedule == "inverse-root":
        return optim.lr * math.sqrt(max(1, warmup) / max(1, step + 1))
    return optim.lr


def set_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Give every group the learning rate of this step."""
    filled: list[Tensor] = []  # groups may share one
    for group in optimizer.param_groups:
        held = group["lr"]
        if not isinstance(held, Tensor):
            group["lr"] = value
        elif not any(held is other for other in filled):
            held.fill_(value)
            filled.append(held)


def memory(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """What the optimiser remembers, by the name of the parameter and of the piece."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for parameter, pieces in optimizer.state.items():
        for piece, value in pieces.items():
            found[f"{names[id(parameter)]}:{piece}"] = torch.as_tensor(value)
    return found


def remember(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give the optimiser back what `memory` took."""
    pieces: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        parameter, _, piece = name.rpartition(":")
        pieces.setdefault(parameter, {})[piece] = value
    parameters = dict(model.named_parameters())
    schema.of_memory(type(optimizer).__name__, tensors, parameters)  # a fused kernel does not look at sizes
    if unknown := [name for name in pieces if name not in parameters]:
        raise BadValue(
            f"resume: the checkpoint's optimiser knows {unknown[0]}, which this model does not have."
        )
    state = optimizer.state_dict()
    order = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state["state"] = {
        order[id(parameters[name])]: {
            piece: part(value, parameters[name]).clone() for piece, value in kept.items()
        }
        for name, kept in pieces.items()
    }
    optimizer.load_state_dict(state)
