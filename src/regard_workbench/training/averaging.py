"""A moving average of the weights, kept beside the weights that are trained: `--optim.average 0.999`.

After step t the average a moves towards the new weights w:

    a ← a + r (w − a),    r = max(1 − decay, 9 / (t + 8))

With r = 1 − decay alone it would be an exponential moving average that holds the random initial weights for a long
time. The second rate is larger in the first steps: it averages polynomially (Shamir & Zhang 2013, η = 8), so that the
average begins with the first trained weights and reaches back over about a ninth of all steps, until that is longer
than the exponential average reaches. The rate depends on the number of the step alone, so a resumed run needs no state
besides the average.

Validation, the choice of the best checkpoint and everything that reads a checkpoint use the averaged weights: those are
in `model.safetensors`. The weights that are trained are training state, as the averages of Adam are, and are kept with
them, under the names `parameter:trained`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.training.engines.sharding import local_shard, shard_like, sharded_like
from regard_workbench.training.run_folder import schema

POWER = 8  # of the polynomial average of the first steps
TRAINED = ":trained"  # what the names of the trained weights in a checkpoint end with


def rate(decay: float, step: int) -> float:
    """How far the average moves towards the weights after step `step`, counted from 1."""
    return max(1.0 - decay, (POWER + 1) / (step + POWER))


class AveragedWeights:
    """The moving average of a model's parameters. Buffers (running statistics) are not averaged.

    Sharded parameters are averaged shard by shard. The average of weights in half precision is kept in float32: there,
    a small step towards a number next to it would be rounded away.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.names = [name for name, _ in model.named_parameters()]
        with torch.no_grad():
            self._kept = [_wide(shard).clone() for shard in self._shards()]
        # On the device, so that a captured step reads the current rate.
        self._rate = torch.zeros((), dtype=self._kept[0].dtype, device=self._kept[0].device)

    def _parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def _shards(self) -> list[Tensor]:
        return [local_shard(parameter.detach()) for parameter in self._parameters()]

    def set_rate(self, step: int) -> None:
        """Set the rate for step `step`, counted from 1."""
        self._rate.fill_(rate(self.decay, step))

    @torch.no_grad()
    def update(self, skipped: Tensor | None = None) -> None:
        """Move towards the weights; not where `skipped` is 1, a number on the device (the step changed nothing)."""
        towards = torch._foreach_sub([_wide(shard) for shard in self._shards()], self._kept)
        torch._foreach_mul_(towards, self._rate if skipped is None else self._rate * (1 - skipped).to(self._rate))
        torch._foreach_add_(self._kept, towards)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the model the averaged weights within the block. Its tensors stay the same; only numbers change."""
        with torch.no_grad():
            trained = [shard.clone() for shard in self._shards()]
            torch._foreach_copy_(self._shards(), self._kept)
            try:
                yield
            finally:
                torch._foreach_copy_(self._shards(), trained)

    def state(self) -> dict[str, Tensor]:
        """The average by the names of the parameters; shards of parameters that are sharded."""
        return {
            name: sharded_like(kept, parameter)
            for name, kept, parameter in zip(self.names, self._kept, self._parameters(), strict=True)
        }

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load an average: full tensors by the names of the parameters."""
        for name, kept, parameter in zip(self.names, self._kept, self._parameters(), strict=True):
            kept.copy_(local_shard(shard_like(tensors[name].to(kept.dtype), parameter)))


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in at least float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def named_trained(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Trained weights under the names that a checkpoint has for them."""
    return {f"{name}{TRAINED}": tensor for name, tensor in weights.items()}


def split_trained(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The optimiser state of a checkpoint, and the trained weights beside it; none if the run has no average."""
    trained = {name.removesuffix(TRAINED): tensor for name, tensor in tensors.items() if name.endswith(TRAINED)}
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(TRAINED)}, trained


def check_trained(trained: Mapping[str, Tensor], model: nn.Module, averaged: bool) -> None:
    """Raise unless a checkpoint has the trained weights of this model, where the run averages them, and else none."""
    if trained and not averaged:
        raise BadValue(
            f"resume: the checkpoint holds the weights {next(iter(trained))}{TRAINED} beside averaged ones, but this "
            "run has no --optim.average. It was written by another run; restore the checkpoint or config.yaml."
        )
    if averaged:
        parameters = dict(model.named_parameters())
        schema.check_weights("resume: trained weights", trained, parameters, set(parameters))
