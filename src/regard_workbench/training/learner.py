"""A model and its optimiser on their device: in one process, replicated (DDP) or sharded (FSDP)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import optim
from regard_workbench.training.averaging import AveragedWeights, check_trained, named_trained, split_trained
from regard_workbench.training.build import Parts, load_weights, unique_tensors
from regard_workbench.training.config import Config
from regard_workbench.training.cuda_graph.graphed_step import MAX_PENDING, STEPS_PER_GRAPH, GraphedStep, refusal
from regard_workbench.training.cuda_graph.pending_step import PendingStep
from regard_workbench.training.data import seed_for
from regard_workbench.training.distributed import buckets, sharding
from regard_workbench.training.distributed.context import SharedContext
from regard_workbench.training.distributed.processes import Processes
from regard_workbench.training.hardware import Hardware
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.state import Buffers, RandomState, Snapshot
from regard_workbench.training.step import Step, StepResult


class Learner:
    """A model that takes optimiser steps. `model` is the module itself, without what training wraps it in."""

    def __init__(
        self,
        config: Config,
        hardware: Hardware,
        processes: Processes,
        parts: Parts,
        checkpoint: Checkpoint | None,
        tell: Callable[[str], None],
    ) -> None:
        self.config, self.hardware, self.processes, self.tell = config, hardware, processes, tell
        self.model, self.acts = parts.model, parts.task.acts
        self.sharded = config.strategy == "fsdp" and not hardware.single_process
        if config.strategy == "fsdp" and hardware.single_process:
            tell("strategy: fsdp shards nothing in one process. Start several: torchrun --nproc_per_node=N -m regard")
        model = self.model
        model.to(hardware.dtype)
        if checkpoint is not None:
            _, trained = split_trained(checkpoint.optimizer)
            check_trained(trained, model, averaged=config.optim.average > 0)
            with torch.no_grad():
                load_weights(model, checkpoint.weights, "resume")
                for name, tensor in trained.items():
                    model.get_parameter(name).copy_(tensor)
        self.names = list(unique_tensors(model))  # before sharding: shards do not show which names share one tensor
        self.average: AveragedWeights | None = None
        self.context: SharedContext | None = None
        if config.context_parallel > 1:
            self.context = SharedContext(config.context_parallel, processes.count, hardware.device, model)
        self._step = self._prepare(checkpoint)
        self.buffers = Buffers(model)
        if isinstance(self._step, GraphedStep) and not self._ungrouped():
            self._step.steps_per_graph = STEPS_PER_GRAPH
        self._random: RandomState | None = None  # as last read, …
        self._drawn = 0  # … after captured steps had drawn so many random numbers

    def _ungrouped(self) -> str:
        """Why each captured step is launched on its own; empty if several may be one graph."""
        if STEPS_PER_GRAPH == 1:
            return "groups are switched off (STEPS_PER_GRAPH of regard_workbench.training.cuda_graph.graphed_step)"
        if self.buffers.names:
            return "snapshots read the model's buffers before each step"
        if any(isinstance(module, torch.nn.RNNBase) for module in self.model.modules()):
            return "several steps with cuDNN's recurrent layers in one graph crashed; mended, but hardly tried since"
        return ""

    def _prepare(self, checkpoint: Checkpoint | None) -> Callable[[Iterable[Batch]], StepResult | PendingStep]:
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
        # Accelerate's wrapper is needed for loss scaling only, and looks for a TPU in each step, which takes time.
        prepared = self.optimizer if accelerator.scaler is None else accelerator.prepare(self.optimizer)
        if checkpoint is not None:
            optimizer_state, _ = split_trained(checkpoint.optimizer)
            optim.restore_optimizer(self.optimizer, self.model, optimizer_state)
            if accelerator.scaler is not None and checkpoint.state.get("scaler"):
                accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
        if config.compile:
            model = torch.compile(model)  # type: ignore[assignment]
        self._uncaptured = step = Step(
            accelerator,
            model,
            prepared,
            self.model.loss,
            accumulate=config.accumulate or 1,
            clip=config.optim.clip or 0.0,
            smoothing=config.optim.smoothing or 0.0,
            example_losses=self.model.example_losses,
            consistency=config.optim.consistency,
            log_probabilities=self.model.problem.answer.log_probabilities,
            context=self.context,
        )
        if config.optim.average > 0:
            self.average = step.average = AveragedWeights(self.model, config.optim.average)
            if checkpoint is not None:
                self.average.restore(checkpoint.weights)
        return GraphedStep(step, self.optimizer, self.tell, MAX_PENDING, hardware.to_device) if captured else step

    def set_rates(self, learning_rate: float, step: int) -> None:
        """Set the rates of the optimiser and of the average, and the seed of dropout, for step `step`, from 1 on.

        The seed is a function of the step, so a resumed run has the same, and reaches the device with the batch.
        """
        if isinstance(self._step, GraphedStep):  # it has the rate and the seed of a captured step beside the batch
            self._step.rate = learning_rate
        else:
            optim.set_rate(self.optimizer, learning_rate)
        if self._uncaptured.takes_seed:  # half of all seeds: the batches of a step add their number
            self._uncaptured.seed = seed_for(self.config.seed, "dropout", step) >> 1
        if self.average is not None:
            self.average.set_rate(step)

    def step(self, batches: Iterable[Batch]) -> StepResult | PendingStep:
        """Take one optimiser step, or launch it on a GPU without waiting for its result."""
        if self.sharded:  # DDP does this itself
            self._sync_buffers()
        if isinstance(self._step, GraphedStep):  # it copies batches of a known shape itself, in one piece
            return self._step(batches)
        return self._step(map(self.hardware.to_device, batches))

    @property
    def replicated(self) -> bool:
        """Whether DDP adds up the gradients of several processes."""
        return not self.sharded and not self.hardware.single_process

    def lay_out_buckets(self, batch: Batch) -> None:
        """Let DDP choose its buckets by a backward pass for a batch, before the first step."""

        def backward() -> None:
            loss, terms = self._uncaptured.forward(self.hardware.to_device(batch))
            self.hardware.accelerator.backward(loss.total if terms is None else loss.total + terms)

        buckets.lay_out(self.model, backward, self.hardware.device.type)

    def snapshot(self) -> Snapshot:
        """Copy what a forward pass changes besides gradients: random states and buffers."""
        drawn: int = getattr(self._step, "drawn", 0)
        # A replay draws no random numbers on the host, and a known number of them on the device; whoever makes a batch
        # draws from a generator of its own, unless the model acts.
        if self._random is None or self.acts or not getattr(self._step, "replayed", False):
            self._random, self._drawn = RandomState.now(self.hardware.device.type), drawn
        return Snapshot(self._random, drawn - self._drawn, self.buffers.now())

    @contextmanager
    def gathered(self) -> Iterator[models.Model]:
        """The full model with the weights to validate, equal in all processes, for each to call on its own."""
        self._random = None  # whoever calls the model may draw random numbers
        self._sync_buffers()
        averaged = nullcontext() if self.average is None else self.average.swapped_in()
        with averaged, sharding.gathered(self.model) if self.sharded else nullcontext():
            yield self.model

    def _sync_buffers(self) -> None:
        """Copy the buffers of rank 0, which are the ones saved; they differ because each rank sees other batches."""
        self.processes.broadcast([one for name, one in self.model.named_buffers() if name in self.buffers.names])

    def state(self, snapshot: Snapshot | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Full weights and optimiser state for a checkpoint, with the buffers of `snapshot` if there is one.

        A collective: all processes call it, and only the main process gets the tensors.
        """
        held = self.model.state_dict()
        optimizer = optim.optimizer_state(self.optimizer, self.model)
        if self.average is not None:  # readers of a checkpoint use the averaged weights
            averaged = self.average.state()
            optimizer |= named_trained({name: held[name] for name in averaged})
            held |= averaged
        weights = sharding.gather_tensors({name: held[name] for name in self.names}, keep=self.processes.is_main)
        if snapshot is not None:
            weights.update({name: copy for name, copy in snapshot.buffers.items() if name in weights})
        return weights, sharding.gather_tensors(optimizer, keep=self.processes.is_main)
