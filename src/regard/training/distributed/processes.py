"""What the processes of one run must agree on: whether one was told to stop, and what they used up together."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch import Tensor

from regard.errors import RegardError
from regard.training.hardware import Hardware

Thing = TypeVar("Thing")
# Gloo has no error class of its own; NCCL's errors are of torch's classes.
_BROKEN = re.compile(r"gloo|connection (?:reset|closed|refused)|broken pipe", re.IGNORECASE)


class ProcessLost(RegardError, ConnectionError):
    """Another process of the run ended, or cannot be reached, in the middle of what all do together."""


class Company:
    """All processes of a run, as one of them sees them. Each method is called by all of them, or by none."""

    def __init__(self, hardware: Hardware) -> None:
        self.accelerator, self.alone = hardware.accelerator, hardware.alone
        self.size: int = self.accelerator.num_processes
        self.place: int = self.accelerator.process_index  # of this process among them

    @property
    def leads(self) -> bool:
        """Whether this process writes for all, and its clock counts."""
        return bool(self.accelerator.is_main_process)

    @contextmanager
    def intact(self, folder: object, tell: Callable[[str], None]) -> Iterator[None]:
        """Say in words that another process is gone. At once: the launcher may end this one, too, any moment."""
        try:
            yield
        except RuntimeError as trouble:
            lost = isinstance(trouble, torch.distributed.DistError) or _BROKEN.search(str(trouble))
            if self.alone or not lost:
                raise
            text = (
                f"Another of the {self.size} processes of this run is gone. The run is saved as of its last checkpoint "
                f"in {folder}; start all of them again with --resume {folder} to go on from there."
            )
            tell(text)
            raise ProcessLost(text) from trouble

    def heard(self, received: int) -> int:
        """The signal that came, to any of them: all stop after the same step."""
        if self.alone:
            return received
        mine = torch.zeros(signal.NSIG)
        mine[received] = 1
        mine[0] = 0
        everyone = self._summed(mine)
        return int(everyone.argmax()) if bool(everyone.any()) else 0

    def used(self, tokens: int, seconds: float) -> tuple[int, float]:
        """The tokens of all together, and the seconds of the first, so that no two count a different time."""
        if self.alone:
            return tokens, seconds
        mine = torch.tensor([tokens, seconds if self.leads else 0.0], dtype=torch.float64)
        total, clock = self._summed(mine).tolist()
        return int(total), clock

    def gather(self, mine: Thing) -> list[Thing]:
        """What each of them has, in their order."""
        return [mine] if self.alone else list(gather_object([mine]))

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Take over what the first process has in these tensors."""
        if not self.alone:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, src=0)

    def _summed(self, numbers: Tensor) -> Tensor:
        found: Tensor = self.accelerator.reduce(numbers.to(self.accelerator.device), "sum")
        return found
