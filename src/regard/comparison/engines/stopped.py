"""What an engine raises when someone asked it to stop: everything is saved, and the same command goes on."""

from __future__ import annotations

import signal


class Stopped(Exception):
    """A signal came; the runs have saved and ended."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number
