"""Steps one kernel after the other, in one process: the definition that other engines are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import optim
from regard_workbench.training.build import Parts, unique_tensors
from regard_workbench.training.config import Config
from regard_workbench.training.data import seed_for
from regard_workbench.training.engines.engine import Buffers, EngineState, PendingStep, Snapshot, StepResult
from regard_workbench.training.engines.step import Step
from regard_workbench.training.hardware import Hardware
from regard_workbench.training.run_folder import schema
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.state import RandomState, seed_everything


class EagerEngine:
    """A model and its optimiser on one device. Other engines are subclasses that replace some of it."""

    captured = False  # whether the optimiser must work inside a CUDA graph

    def __init__(self, config: Config, hardware: Hardware, parts: Parts, tell: Callable[[str], None]) -> None:
        self.config, self.hardware, self.tell = config, hardware, tell
        self.model, self.acts = parts.model, parts.task.acts
        self.model.to(hardware.dtype)
        self.names = list(unique_tensors(self.model))  # before sharding, which hides what names share one tensor
        wrapped = self._wrapped()
        self.optimizer = optim.build(self.model, config.optim, captured=self.captured)
        self.plain_step = self._step(wrapped)
        self.average = None
        if config.optim.average > 0:
            from regard_workbench.training.averaging import AveragedWeights

            self.average = self.plain_step.average = AveragedWeights(self.model, config.optim.average)
        self.buffers = Buffers(self.model)

    def _wrapped(self) -> nn.Module:
        """The model on its device, as a step calls it."""
        prepared: nn.Module = self.hardware.accelerator.prepare(self.model)
        return prepared

    def _step(self, wrapped: nn.Module) -> Step:
        settings, compiled = self.config.optim, self.config.compile
        return Step(self.hardware, self.model, self.optimizer, settings, wrapped=wrapped, compiled=compiled)

    def begin(self, separate_batch: Callable[[], Batch]) -> None:
        """Nothing has to be prepared."""

    def step(self, batches: Iterable[Batch], rate: float, number: int) -> StepResult | PendingStep:
        """Take one optimiser step."""
        optim.set_rate(self.optimizer, rate)
        self._number(number)
        return self.plain_step(map(self.hardware.to_device, batches))

    def _number(self, number: int) -> None:
        """Set what depends on the number of the step alone, so that a resumed run has the same.

        The seed of dropout is half of all seeds: the batches of a step add their number.
        """
        self.plain_step.seed = seed_for(self.config.seed, "dropout", number) >> 1
        if self.average is not None:
            self.average.set_rate(number)

    def snapshot(self) -> Snapshot:
        """Copy what a forward pass changes besides gradients: random states and buffers."""
        return Snapshot(RandomState.now(self.hardware.device.type), 0, self.buffers.now())

    @contextmanager
    def evaluated(self) -> Iterator[models.Model]:
        """The model with the weights to validate: the averaged ones, where there is an average."""
        with nullcontext() if self.average is None else self.average.swapped_in():
            yield self.model

    def state(self, snapshot: Snapshot | None) -> EngineState:
        """What a checkpoint holds."""
        tensors, optimizer = self.model.state_dict(), optim.optimizer_state(self.optimizer, self.model)
        if self.average is not None:  # readers of a checkpoint use the averaged weights
            from regard_workbench.training.averaging import named_trained

            averaged = self.average.state()
            optimizer |= named_trained({name: tensors[name] for name in averaged})
            tensors |= averaged
        weights = self._whole({name: tensors[name] for name in self.names})
        random = RandomState.now(self.hardware.device.type)
        if snapshot is not None:
            weights.update({name: copy for name, copy in snapshot.buffers.items() if name in weights})
            random = snapshot.random
        scaler = self.hardware.accelerator.scaler
        return EngineState(
            weights,
            self._whole(optimizer),
            self.hardware.processes.gather(random),
            None if scaler is None else scaler.state_dict(),
        )

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        from regard_workbench.training.averaging import check_trained, split_trained

        optimizer, trained = split_trained(checkpoint.optimizer)
        check_trained(trained, self.model, averaged=self.average is not None)
        tensors = self.model.state_dict()
        tensors = {name: tensors[name] for name in self.names}
        learned = {name for name, _ in self.model.named_parameters()}
        schema.check_weights("resume", checkpoint.weights, tensors, learned)
        with torch.no_grad():
            for name, tensor in (checkpoint.weights | trained).items():
                tensors[name].copy_(self._placed(tensor, tensors[name]))
        optim.restore_optimizer(self.optimizer, self.model, optimizer, self._placed)
        scaler = self.hardware.accelerator.scaler
        if scaler is not None and checkpoint.state.get("scaler"):
            scaler.load_state_dict(checkpoint.state["scaler"])
        if self.average is not None:
            self.average.restore(checkpoint.weights)
        self._restore_random(checkpoint)

    def _restore_random(self, checkpoint: Checkpoint) -> None:
        """Restore the random generators; with another number of processes, seed them anew from the step."""
        states = RandomState.unpack_all(checkpoint.random, checkpoint.state.get("random"))
        count, rank = self.hardware.processes.count, self.hardware.processes.rank
        if len(states) == count:
            states[rank].restore()
            return
        self.tell(
            f"resume: the number of processes was {len(states)} and is {count} now. From here on, batches and random "
            "draws (dropout) differ from those of an uninterrupted run."
        )
        seed_everything(seed_for(self.config.seed, "process", rank, checkpoint.step))

    def _placed(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A tensor of a checkpoint in the form of one of this engine."""
        return tensor

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of this engine as a checkpoint has them."""
        return dict(tensors)
