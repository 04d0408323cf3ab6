"""How a step is executed, as far as the loop knows: a `StepEngine`, the result of a step, and what undoes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from regard.errors import RegardError
from regard_workbench import models
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.state import RandomState

MAX_PENDING = 32  # steps whose results were not read yet


class NonFinite(RegardError, ArithmeticError):
    """The loss or its gradient is non-finite; the weights were not changed."""


@dataclass(frozen=True)
class StepResult:
    """The loss and the gradient norm of a step."""

    loss: float
    norm: float
    ready: ClassVar[bool] = True  # unlike a `PendingStep`, it never has to be waited for

    def result(self) -> StepResult:
        """Itself, as `PendingStep.result` returns it."""
        return self


class PendingStep:
    """A step that was launched on the device. `result` waits for its result, and raises what a step raises."""

    __slots__ = ("_check", "_done", "_slot", "_values")

    def __init__(self, slot: Any, done: Any, check: Callable[..., None]) -> None:
        """`slot`: memory of the host for three numbers, an array or a tensor; `done`: the event that they are there."""
        self._slot, self._done, self._check = slot, done, check
        self._values: list[float] | None = None

    @property
    def ready(self) -> bool:
        """Whether the result is available without waiting."""
        return self._values is not None or bool(self._done.query())

    def read(self) -> list[float]:
        """Wait for loss, gradient norm and whether the update was skipped, without raising."""
        if self._values is None:
            self._done.synchronize()
            self._values = self._slot.tolist()
        return self._values

    def result(self) -> StepResult:
        """Wait for the result; raise `NonFinite` if this step or one before it was skipped."""
        loss, norm, skipped = self.read()
        self._check(loss, norm, skipped)
        return StepResult(loss, norm)


@dataclass(slots=True)
class Snapshot:
    """What a forward pass changes besides gradients, noted before a step: random states and buffers."""

    earlier: RandomState  # the states some captured steps before, …
    drawn: int  # … in which the device has drawn so many random numbers; reading its generator takes time
    buffers: dict[str, Tensor]

    @property
    def random(self) -> RandomState:
        """The states before the step."""
        return self.earlier.after_draws(self.drawn) if self.drawn else self.earlier


class Buffers:
    """Copies of a model's persistent buffers (running statistics, baselines); only changed buffers are copied again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        persistent = set(model.state_dict())
        self.names = [name for name, _ in model.named_buffers() if name in persistent]
        self._marks: dict[str, tuple[Tensor, int]] = {}
        self._copies: dict[str, Tensor] = {}

    def now(self) -> dict[str, Tensor]:
        """Copies of the current buffers; later changes do not affect them."""
        if not self.names:
            return {}
        for name, buffer in self.model.named_buffers():
            if name not in self.names:
                continue
            mark = self._marks.get(name)
            # The replay of a CUDA graph changes buffers but not their versions, so those on a GPU are always copied.
            if mark is None or mark[0] is not buffer or mark[1] != buffer._version or buffer.is_cuda:
                self._copies[name] = buffer.detach().clone()
                self._marks[name] = (buffer, buffer._version)
        return dict(self._copies)


@dataclass(frozen=True)
class EngineState:
    """All that a step changes, for a checkpoint: tensors by name as a single process has them, on the main process."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: list[RandomState]  # of each process
    scaler: dict[str, Any] | None  # of loss scaling


class StepEngine(Protocol):
    """What executes the steps of a run: eagerly, as a CUDA graph, in several processes."""

    model: models.Model  # the module itself, without what training wraps it in

    def load(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Nothing may draw random numbers between this and the first step."""

    def begin(self, separate_batch: Callable[[], Batch]) -> None:
        """Prepare the first step, if need be by a batch that is not one of the run; nothing changes by it."""

    def snapshot(self) -> Snapshot:
        """Copy what a step changes before it updates the weights, so that a step that is abandoned can be undone."""

    def step(self, batches: Iterable[Batch], rate: float, number: int) -> StepResult | PendingStep:
        """Take step `number`, from 1 on, with this learning rate, or launch it without waiting for its result.

        A step that raises, `NonFinite` for instance, has changed no weight.
        """

    def evaluated(self) -> AbstractContextManager[models.Model]:
        """The full model with the weights to validate, equal in all processes, for each to call on its own."""

    def state(self, snapshot: Snapshot | None) -> EngineState:
        """What a checkpoint holds: the state now, or with the random states and buffers of a snapshot.

        A collective: all processes call it, and only the main process gets the tensors.
        """
