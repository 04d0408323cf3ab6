"""What learns: a model and its optimiser where they compute, alone, as equal copies (DDP) or cut in parts (FSDP)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from regard import models
from regard.tasks.batch import Batch
from regard.training import optim
from regard.training.assembly import Parts, own_tensors, take_weights
from regard.training.config import Config
from regard.training.cuda_graph.graphed_step import AHEAD, Flight, GraphedStep, refusal
from regard.training.distributed import sharding
from regard.training.distributed.processes import Company
from regard.training.hardware import Hardware
from regard.training.position import Boundary, Buffers
from regard.training.random_state import RandomState
from regard.training.run_folder.checkpoints import Checkpoint
from regard.training.step import Step, Taken


class Learner:
    """A model that takes steps. `model` is the network itself, whatever it is wrapped in for training."""

    def __init__(
        self,
        config: Config,
        hardware: Hardware,
        company: Company,
        parts: Parts,
        checkpoint: Checkpoint | None,
        tell: Callable[[str], None],
    ) -> None:
        self.config, self.hardware, self.company, self.tell = config, hardware, company, tell
        self.model = parts.model
        self.sharded = config.strategy == "fsdp" and not hardware.alone
        if config.strategy == "fsdp" and hardware.alone:
            tell(
                "strategy: one process has nobody to share with. Start several: torchrun --nproc_per_node=N -m regard"
            )
        model = self.model
        model.to(hardware.dtype)
        if checkpoint is not None:
            with torch.no_grad():
                take_weights(model, checkpoint.weights, "resume")
        self.names = list(own_tensors(model))  # here: parts do not show which of them are one tensor
        self._step = self._prepare(checkpoint)
        self.buffers = Buffers(model)
        self._random: RandomState | None = None

    def _prepare(self, checkpoint: Checkpoint | None) -> Callable[[Iterator[Batch]], Taken | Flight]:
        config, hardware = self.config, self.hardware
        accelerator = hardware.accelerator
        model: torch.nn.Module = self.model
        if self.sharded:
            mixed = config.precision == "bf16-mixed"
            sharding.shard(model, hardware.device, accelerator.num_processes, mixed=mixed)
        else:
            model = accelerator.prepare(model)
        captured = not refusal(config, hardware)
        self.optimizer = optim.build(self.model, config.optim, captured=captured)
        # Accelerate's wrapper is for loss scaling; each of its steps looks for a TPU, which takes time.
        prepared = self.optimizer if accelerator.scaler is None else accelerator.prepare(self.optimizer)
        if checkpoint is not None:
            optim.remember(self.optimizer, self.model, checkpoint.optimizer)
            if accelerator.scaler is not None and checkpoint.state.get("scaler"):
                accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
        if config.compile:
            model = torch.compile(model)  # type: ignore[assignment]
        step = Step(
            accelerator, model, prepared, self.model.loss, accumulate=config.accumulate or 1,
            clip=config.optim.clip or 0.0, smoothing=config.optim.smoothing or 0.0,
        )  # fmt: skip
        return GraphedStep(step, self.optimizer, self.tell, AHEAD, hardware.place) if captured else step

    def step(self, batches: Iterator[Batch]) -> Taken | Flight:
        """Take one step, or send it on its way."""
        if self.sharded:  # DDP does so by itself
            self._even()
        if isinstance(self._step, GraphedStep):  # it knows a quicker way for batches of a known shape
            return self._step(batches)
        return self._step(map(self.hardware.place, batches))

    def boundary(self) -> Boundary:
        """What a step may change before it is sure to be taken, as it is now."""
        if self._random is not None and getattr(self._step, "on_device", False):
            self._random = (
                self._random.later()
            )  # a replay draws nothing on the host, and asking there takes time
        else:
            self._random = RandomState.now()
        return Boundary(self._random, self.buffers.now())

    @contextmanager
    def usable(self) -> Iterator[models.Model]:
        """The model for a while in which each process uses it on its own: whole, and the same in all of them."""
        self._even()
        with sharding.gathered(self.model) if self.sharded else nullcontext():
            yield self.model

    def _even(self) -> None:
        """Take over the first process's buffers: each saw other batches, and one set of them is saved."""
        self.company.follow([one for name, one in self.model.named_buffers() if name in self.buffers.names])

    def tensors(self, boundary: Boundary | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Weights and the optimiser's memory for a file, buffers as of `boundary`: whole, where the file is written.

        All processes must ask together.
        """
        held = self.model.state_dict()
        weights = sharding.collected({name: held[name] for name in self.names}, keep=self.company.leads)
        if boundary is not None:
            weights.update({name: copy for name, copy in boundary.buffers.items() if name in weights})
        memory = optim.memory(self.optimizer, self.model)
        return weights, sharding.collected(memory, keep=self.company.leads)
