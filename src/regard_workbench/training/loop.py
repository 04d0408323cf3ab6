"""One training run, from its first batch to its last checkpoint: what a reader of this room reads first.

A run is three values. `Config` never changes. `Position` counts. The tensors (weights, optimiser state, random states)
change in every step; an engine (`engines/`) has them, and executes the steps. Two rules make a run that was stopped
anywhere, by a kill or a signal, end with the same bits as one that was not:

    a batch is a function of the settings and its number                                        `TrainingData`
    a checkpoint is the position and all tensors of one moment, between two steps, with no step
    pending, and exists completely or not at all                                                `save`

So nothing else here knows of resuming. A run that is stopped inside a step is saved as it was before that step, whose
batches are repeated.

On a GPU, steps are launched without waiting for their results, and the loop reads each result once it is available.
Validations, checkpoints and the end of the run wait for all pending steps. If a pending step turns out to be
non-finite, neither it nor the steps after it changed the weights, and the loop restores its state before that step.
"""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from regard.errors import BadValue
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import optim
from regard_workbench.training.build import Parts
from regard_workbench.training.config import Config
from regard_workbench.training.config.budget import budget_of
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.data import StepBatches, TrainingData
from regard_workbench.training.engines import engine_for
from regard_workbench.training.engines.engine import MAX_PENDING, NonFinite, PendingStep, Snapshot, StepResult
from regard_workbench.training.evaluation import completions, evaluate
from regard_workbench.training.hardware import Hardware, any_shape
from regard_workbench.training.progress import Display, Pace
from regard_workbench.training.recorder import RunRecorder
from regard_workbench.training.run_folder import checkpoints
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.metrics_file import Record, plain
from regard_workbench.training.signals import Interrupted, Signals

COMPLETED = 100  # texts that the last validation, and a comparison, complete at most
SECONDS_AT_RISK = 300.0  # with slow steps, save at least this often, whatever --save-every says
SECONDS_UNREAD = 0.002  # results of pending steps are looked for this often; a look at each takes the time of a launch


@dataclass
class Position:
    """Counters of a run. `batches` alone says where in the data it is: the order is a function of it."""

    step: int = 0
    batches: int = 0
    tokens: int = 0  # real positions that were trained on, over all processes
    seconds: float = 0.0  # of training, over all processes that worked on the run
    best: float | None = None  # the deciding metric at its best
    best_step: int | None = None
    best_loss: float | None = None  # of the same validation; None where it is unknown
    stale: int = 0  # validations since the deciding metric last improved
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)  # of the last validation
    pending: dict[str, Any] | None = None  # the record of a step whose validation was interrupted

    @classmethod
    def read(cls, state: Mapping[str, Any]) -> Position:
        """Read the counters of a checkpoint."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in state.items() if name in names})

    def copy(self) -> Position:
        """The same counters; `copy.copy` would take ten times as long, in every step."""
        copied = object.__new__(Position)
        copied.__dict__.update(self.__dict__)
        return copied

    def validated(self, value: float, higher_is_better: bool, loss: float | None = None) -> bool:
        """Note a validation; whether it is the best so far. A non-finite value is never the best.

        Among equal values the lower loss is better, and among equal losses the earlier validation. A lower loss alone
        does not count as progress for `patience`: otherwise a run whose metric cannot rise further would never stop.
        """
        improved = math.isfinite(value) and (
            self.best is None or (value > self.best if higher_is_better else value < self.best)
        )
        known_loss = loss if loss is not None and math.isfinite(loss) else None
        tie_won = False
        if value == self.best and known_loss is not None and self.best_loss is not None:
            tie_won = known_loss < self.best_loss
        self.stale = 0 if improved else self.stale + 1
        if improved or tie_won:
            self.best, self.best_step, self.best_loss = value, self.step, known_loss
        return improved or tie_won


@dataclass(slots=True)
class LaunchedStep:
    """A step whose result was not read yet, and the state to restore if it turns out to be non-finite."""

    result: StepResult | PendingStep
    snapshot: Snapshot
    position: Position  # before the step
    record: Record | None = None  # its line of metrics, if it is logged


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        parts: Parts,
        hardware: Hardware,
        signals: Signals,
        checkpoint: Checkpoint | None = None,
        tell: Callable[[str], None] = lambda text: None,
        quiet: bool = False,
    ) -> None:
        self.config, self.run, self.task, self.model = config, run, parts.task, parts.model
        self.hardware, self.signals, self.tell, self.quiet = hardware, signals, tell, quiet
        self.budget, self.keep, self.processes = budget_of(config), Keep.parse(config.keep), hardware.processes
        self.accumulate = config.accumulate or 1
        self.position, self.saved_step = Position(), -1
        if checkpoint is not None:
            self.position, self.saved_step = Position.read(checkpoint.state["progress"]), checkpoint.step
        self.saved_seconds = self.position.seconds
        self.launched: deque[LaunchedStep] = deque()
        self.last_result: StepResult | None = None
        self.looked = 0.0  # when results were last looked for
        self.data = TrainingData(self.task, self.model, config, self.processes.readers)
        self.has_validation = len(self.task.examples("validation")) > 0
        self.engine = engine_for(config, hardware, parts, tell)
        if checkpoint is not None:
            self.engine.load(checkpoint)  # last, so that nothing draws random numbers after it

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open everything a run writes to while it trains."""
        with ExitStack() as stack:
            self.recorder: RunRecorder | None = None
            if self.processes.is_main:
                self.recorder = RunRecorder(self.config, self.run, self.task, self.position.step, self.tell)
                stack.callback(self.recorder.close)
                if self.saved_step >= 0:  # a process that was killed after it saved left older checkpoints
                    self.recorder.prune(self.position)
            self.display = Display(self.budget, self.position, quiet=self.quiet or not self.processes.is_main)
            stack.callback(self.display.close)
            stack.callback(self.data.close)
            self.pace = Pace()
            self.model.train()
            with any_shape():
                self.engine.begin(partial(self.data.separate_batch, self.processes.reader))
                yield

    def train(self) -> str:
        """Train until there is a reason to stop, and return it, as in `Result.stopped_by`."""
        with self.open():
            if self.position.pending is not None:  # the last process was stopped inside a validation
                self.saved_step = -1
                self._finish_step(tenth=True)
            if self.keep.whole_training and self.position.step == 0:
                self.save()
            while not (reason := self._reason_to_stop()):
                self.advance()
            self.synchronize()
            self.save()
            return reason

    def _reason_to_stop(self) -> str:
        if received := self.processes.any_signal(self.signals.received):
            return signal.Signals(received).name
        if self.budget.ends(self.position):
            return "steps" if self.budget.kind == "steps" else "budget"
        patience = self.config.patience
        return "patience" if patience is not None and self.position.stale >= patience else ""

    def advance(self) -> None:
        """Take one step, then log, validate and save where due. A signal inside the step undoes it."""
        started = time.perf_counter()
        if len(self.launched) >= MAX_PENDING:
            self.synchronize(pending=MAX_PENDING - 1)
        snapshot, position, before = self.engine.snapshot(), self.position, self.position.copy()
        rate = optim.rate(self.config.optim, position.step, self.budget.expected_steps(position))
        batches = self._next_batches()
        try:
            result = self.engine.step(batches, rate, position.step + 1)
        except Interrupted:
            self.synchronize()
            self.save(snapshot)
            return
        except NonFinite as error:
            self.synchronize()  # if an earlier step is non-finite too, name that one
            self._stop_non_finite(snapshot, error)
        except Exception:  # out of memory, a mistake in a task: keep what was learned
            self._save_before_error(snapshot)
            raise
        tenths = self.budget.tenths(position)
        position.step += 1
        position.batches += self.accumulate * self.processes.readers
        self.launched.append(LaunchedStep(result, snapshot, before))
        instant = time.perf_counter()
        self.pace.add_step(instant - started)
        tokens, seconds = self.processes.total_used(batches.tokens, instant - started)
        position.tokens += tokens
        position.seconds += seconds
        tenth = self.budget.tenths(position) > tenths
        if not self._must_synchronize(tenth):
            if self._log_due():
                self.launched[-1].record = self._record(rate)
            if isinstance(result, StepResult) or instant - self.looked > SECONDS_UNREAD:
                self.looked = instant
                self.synchronize(pending=MAX_PENDING)
                self._show()
            return
        started = time.perf_counter()
        self.synchronize()
        waited = time.perf_counter() - started
        self.pace.add_wait(waited)
        position.seconds += waited if self.processes.single else 0.0  # several processes have no pending steps
        self._show()
        position.pending = self._with_result(self._record(rate))
        try:
            self._finish_step(tenth)
        except Exception:
            self._save_before_error(None)
            raise

    def synchronize(self, pending: int = 0) -> None:
        """Read the results that are available, and wait until at most `pending` steps are pending."""
        while self.launched:
            oldest = self.launched[0]
            if len(self.launched) <= pending and not oldest.result.ready:
                return
            self.launched.popleft()
            try:
                self.last_result = oldest.result.result()
            except NonFinite as error:
                self.launched.clear()
                vars(self.position).update(vars(oldest.position))
                self._stop_non_finite(oldest.snapshot, error)
            if oldest.record is not None:
                self._log(self._with_result(oldest.record))

    def _next_batches(self) -> StepBatches:
        """The batches of the next step; each reader takes every n-th."""
        count, first = self.processes.readers, self.position.batches + self.processes.reader
        indices = range(first, first + self.accumulate * count, count)
        return StepBatches(self.data, indices, self._interrupted)

    def _interrupted(self) -> bool:
        """Whether to stop within a step or a validation; several processes stop only between steps, together."""
        return self.processes.single and bool(self.signals.received)

    def batch(self, index: int) -> Batch:
        """Training batch `index`, on the device."""
        return self.hardware.to_device(self.data.batch(index))

    def _finish_step(self, tenth: bool) -> None:
        """Validate, log and save after the last step, where due. A signal may cut this short.

        `tenth`: the step used up another tenth of a budget in tokens or seconds, so validation and checkpoint are due.
        """
        record = self.position.pending
        assert record is not None
        best, validation_due = False, self._validation_due(tenth)
        if validation_due:
            metrics = self._validate()
            if metrics is None:
                return
            name = self.task.metric.name
            if name not in metrics:
                raise BadValue(
                    f"task: {self.task.name} is decided by {name!r}, but its validation measured only "
                    f"{', '.join(metrics) or 'nothing'}."
                )
            best = self.position.validated(metrics[name], self.task.metric.higher_is_better, metrics.get("loss"))
            self.position.metrics = record["validation"] = plain(metrics)
            self.display.validated(name, metrics[name], best)
        self.position.pending = None
        if validation_due or self._log_due():
            self._log(record)
        if best or self._save_due(tenth):
            self.save()

    def _validate(self) -> dict[str, float] | None:
        """The metrics of the validation; the last one also completes some texts. None after a signal."""
        config, hardware = self.config, self.hardware
        size, limit, autocast = config.batch_size or 1, config.eval_limit, hardware.accelerator.autocast
        with self.engine.evaluated() as model:
            metrics = evaluate(
                self.task,
                model,
                batch_size=size,
                limit=limit,
                seed=config.seed,
                to_device=hardware.to_device,
                stop=self._interrupted,
                autocast=autocast,
                share=(self.processes.rank, self.processes.count),
                gather=self.processes.gather,
            )
            # Every process completes the same texts, so that all have the same numbers; with the positions of a text on
            # several processes, none could.
            if metrics is not None and self.budget.ends(self.position) and config.context_parallel == 1:
                most, device = min(limit or COMPLETED, COMPLETED), hardware.device
                metrics |= completions(
                    self.task, model, "validation", batch_size=size, most=most, device=device, autocast=autocast
                )
        return metrics

    def _log_due(self) -> bool:
        step = self.position.step
        return step == 1 or step % (self.config.log_every or 1) == 0 or self.budget.ends(self.position)

    def _save_due(self, tenth: bool) -> bool:
        late = self.position.seconds - self.saved_seconds > SECONDS_AT_RISK  # by the clock all processes agree on
        step = self.position.step
        return tenth or late or step % (self.config.save_every or 1) == 0 or self.keep.due(step)

    def _validation_due(self, tenth: bool) -> bool:
        last = self.budget.ends(self.position)
        return self.has_validation and (tenth or last or self.position.step % (self.config.eval_every or 1) == 0)

    def _must_synchronize(self, tenth: bool) -> bool:
        """Whether something is due that no step may be pending for."""
        return self._save_due(tenth) or self._validation_due(tenth) or self.budget.ends(self.position)

    def _show(self) -> None:
        if self.last_result is not None:
            self.display.step(self.last_result.loss, self.speed)

    def _record(self, rate: float) -> Record:
        return {
            "step": self.position.step,
            "loss": None,  # unknown until the result is read
            "lr": rate,
            "grad_norm": None,
            "epoch": self.data.epoch(self.position.batches - 1),
            "tokens": self.position.tokens,
            "seconds": round(self.position.seconds, 3),
            "steps_per_second": round(self.speed, 3),
        }

    def _with_result(self, record: Record) -> Record:
        """The record of the last step whose result was read, with loss and gradient norm filled in."""
        assert self.last_result is not None
        return {**record, "loss": self.last_result.loss, "grad_norm": self.last_result.norm}

    def _log(self, record: Record) -> None:
        if self.recorder is not None:
            self.recorder.log(record)

    @property
    def speed(self) -> float:
        """Steps per second of this process, without validations, checkpoints and the first steps, which compile."""
        return self.pace.steps_per_second

    def save(self, snapshot: Snapshot | None = None) -> None:
        """Write a checkpoint of the state after the last complete step, unless it was written already.

        All processes call this, with their random states and their shards of the weights; the main process writes.
        """
        if self.saved_step == self.position.step:
            return
        state = self.engine.state(snapshot)
        if self.recorder is not None:
            self.recorder.save(self.position, state, self.saved_step)
        self.saved_step, self.saved_seconds = self.position.step, self.position.seconds

    def _save_before_error(self, snapshot: Snapshot | None) -> None:
        """Save before an error ends the run; if saving fails too, the first error is the one to raise.

        Several processes save nothing: a save is a collective, and the others may not have failed.
        """
        if not self.processes.single:
            return
        with suppress(Exception):
            self.synchronize()
            self.save(snapshot)
            self.tell(f"Saved at step {self.position.step} in {self.run.path}.")

    def _stop_non_finite(self, snapshot: Snapshot, error: NonFinite) -> NoReturn:
        number = self.position.step + 1
        self.save(snapshot)
        raise NonFinite(
            f"step {number}: {error}. Stopped before the update: the weights are those of step {number - 1}, saved "
            f"in {self.run.checkpoints / checkpoints.name_of(number - 1)}. Look at these examples, or try a lower "
            f"--optim.lr or a longer --optim.warmup."
        ) from None
