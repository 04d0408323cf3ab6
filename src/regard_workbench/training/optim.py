"""The optimiser: which weights decay, the learning rate schedule, and the optimiser state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.tasks.parts.task import Recipe
from regard_workbench.training.config import Optim
from regard_workbench.training.run_folder import schema

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def groups(model: nn.Module, weight_decay: float, embeddings: bool = False) -> list[dict[str, Any]]:
    """Two groups of parameters: matrices, which decay, and the rest (norms, biases, vectors).

    `embeddings`: whether they decay, too.
    """
    kinds = _NORMS if embeddings else (nn.Embedding, nn.EmbeddingBag, *_NORMS)
    undecayed: set[int] = set()
    for module in model.modules():
        if isinstance(module, kinds):
            undecayed |= {id(parameter) for parameter in module.parameters(recurse=False)}
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            exempt = id(parameter) in undecayed or parameter.dim() < 2 or name.endswith("bias")
            (plain if exempt else decayed).append(parameter)
    both = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]


def build(model: nn.Module, optim: Optim, *, captured: bool = False) -> torch.optim.Optimizer:
    """Build the optimiser. `captured`: for use inside a CUDA graph, with its learning rate on the device."""
    assert optim.lr is not None
    # None: settings not completed by a recipe
    decay = Recipe.weight_decay if optim.weight_decay is None else optim.weight_decay
    betas = Recipe.betas if optim.betas is None else optim.betas
    parameter_groups = groups(model, decay, optim.decay_embeddings)
    if not parameter_groups:
        raise BadValue("model: it has no parameters to train.")
    rate = torch.tensor(optim.lr, device=parameter_groups[0]["params"][0].device)
    if optim.optimizer == "rmsprop":
        # With the constants of Graves 2013, section 4.2, as Neural Turing Machines are trained. No weight decay: to
        # RMSprop it is part of the gradient, and is scaled up where the gradient is small.
        plain = [{"params": group["params"]} for group in parameter_groups]
        if not captured:
            return torch.optim.RMSprop(plain, lr=optim.lr, alpha=0.95, momentum=0.9)
        from regard_workbench.training.engines.cuda_graph.rmsprop import SkippableRMSprop

        return SkippableRMSprop(plain, lr=rate, alpha=0.95, momentum=0.9)
    where = {p.device.type for group in parameter_groups for p in group["params"]}
    # Fused: one kernel for all parameters. For small models, the update would otherwise be a visible part of a step.
    fused = where <= {"cpu", "cuda"} and all(
        p.is_floating_point() for group in parameter_groups for p in group["params"]
    )
    if optim.optimizer == "sgd":
        # Without momentum it has no state. The fused one skips an update where `found_inf` says so.
        return torch.optim.SGD(parameter_groups, lr=rate if captured else optim.lr, fused=fused or captured)
    if captured:
        return torch.optim.AdamW(parameter_groups, lr=rate, betas=betas, fused=True, capturable=True)
    return torch.optim.AdamW(parameter_groups, lr=optim.lr, betas=betas, fused=fused)


def rate(optim: Optim, step: int, steps: float) -> float:
    """The learning rate of step `step`, counted from 0, in a run of (an expected number of) `steps`.

    It rises linearly over `warmup` steps, and then

        cosine        falls as half a cosine, to 0 after the last step
        inverse-root  falls as √(warmup / step)
        halving       halves after each quarter of the steps (Sukhbaatar et al. 2015, section 4.2)
        constant      stays the same
    """
    assert optim.lr is not None
    warmup = optim.warmup or 0
    if step < warmup:
        return optim.lr * (step + 1) / warmup
    if optim.schedule in (None, "cosine"):  # None: settings not completed by a recipe
        done = (step - warmup) / max(1, steps - warmup)
        return optim.lr * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    if optim.schedule == "inverse-root":
        return optim.lr * math.sqrt(max(1, warmup) / max(1, step + 1))
    if optim.schedule == "halving":
        done = (step - warmup) / max(1, steps - warmup)
        return optim.lr * 0.5 ** min(3, math.floor(4 * done))
    return optim.lr


def set_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups."""
    filled: list[Tensor] = []  # groups may share one tensor
    for group in optimizer.param_groups:
        current = group["lr"]
        if not isinstance(current, Tensor):
            group["lr"] = value
        elif not any(current is tensor for tensor in filled):
            current.fill_(value)
            filled.append(current)


def optimizer_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The tensors of the optimiser state, named `parameter:piece`, for instance `head.weight:exp_avg`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    for parameter, pieces in optimizer.state.items():
        for piece, value in pieces.items():
            tensors[f"{names[id(parameter)]}:{piece}"] = torch.as_tensor(value)
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    placed: Callable[[Tensor, Tensor], Tensor] = lambda tensor, parameter: tensor,
) -> None:
    """Load what `optimizer_state` returned into the optimiser. `placed` shards a tensor as its parameter is sharded."""
    pieces: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        parameter, _, piece = name.rpartition(":")
        pieces.setdefault(parameter, {})[piece] = value
    parameters = dict(model.named_parameters())
    schema.check_optimizer(type(optimizer).__name__, tensors, parameters)  # fused kernels do not check sizes
    if unknown := [name for name in pieces if name not in parameters]:
        raise BadValue(f"resume: the checkpoint's optimiser state is for {unknown[0]}, which this model does not have.")
    state = optimizer.state_dict()
    order = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state["state"] = {
        order[id(parameters[name])]: {piece: placed(value, parameters[name]).clone() for piece, value in kept.items()}
        for name, kept in pieces.items()
    }
    optimizer.load_state_dict(state)
