"""What the processes of one run do together: agree on when to stop, add up what they used, gather and broadcast."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor

T = TypeVar("T")


class Processes:
    """All processes of a run, as seen by one of them. Every method is a collective: all processes call it, or none."""

    def __init__(self, accelerator: Any, sharing: int = 1) -> None:
        """`sharing` processes in a row read the same batches (`--context-parallel`)."""
        self.accelerator = accelerator
        self.count: int = accelerator.num_processes
        self.rank: int = accelerator.process_index
        self.single = self.count == 1
        self.readers = self.count // sharing  # how many different batches are read at a time
        self.reader, place = divmod(self.rank, sharing)  # which of them this process reads
        self.counts_tokens = place == 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the run folder and whose clock counts."""
        return bool(self.accelerator.is_main_process)

    @contextmanager
    def report_loss(self, folder: object, tell: Callable[[str], None]) -> Iterator[None]:
        """Raise `ProcessLost` if another process is gone; tell at once, because the launcher may end this one too."""
        try:
            yield
        except (RuntimeError, ConnectionError) as error:
            if self.single:
                raise
            from regard.parallel.exchange import ProcessLost, is_loss

            if not isinstance(error, (RuntimeError, ProcessLost)) or not is_loss(error):
                raise
            text = (
                f"Another of the {self.count} processes of this run is gone. The run is saved as of its last "
                f"checkpoint in {folder}; start all of them again with --resume {folder} to continue from there."
            )
            tell(text)
            raise ProcessLost(text) from error

    def any_signal(self, received: int) -> int:
        """The signal that any process received, 0 for none, so that all stop after the same step."""
        if self.single:
            return received
        mine = torch.zeros(signal.NSIG)
        mine[received] = 1
        mine[0] = 0
        all_received = self.sum(mine)
        return int(all_received.argmax()) if bool(all_received.any()) else 0

    def total_used(self, tokens: int, seconds: float) -> tuple[int, float]:
        """The tokens of all batches, and the seconds of rank 0, so that all count the same time."""
        if self.single:
            return tokens, seconds
        tokens = tokens if self.counts_tokens else 0
        mine = torch.tensor([tokens, seconds if self.is_main else 0.0], dtype=torch.float64)
        total, clock = self.sum(mine).tolist()
        return int(total), clock

    def gather(self, mine: T) -> list[T]:
        """The objects of all processes, in the order of their ranks."""
        return [mine] if self.single else list(gather_object([mine]))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite these tensors with those of rank 0."""
        if not self.single:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def sum(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        total: Tensor = numbers if self.single else self.accelerator.reduce(numbers.to(self.accelerator.device), "sum")
        return total

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean over all processes."""
        mean: Tensor = numbers if self.single else self.accelerator.reduce(numbers, "mean")
        return mean
