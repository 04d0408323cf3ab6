"""How fast a run trains: steps per second without the first steps, which compile and capture."""

from __future__ import annotations

WARM_UP = 5  # steps in which buffers are allocated, code is compiled and a CUDA graph is captured


class Pace:
    """Counts the steps of one process and their seconds.

    >>> pace = Pace()
    >>> for seconds in (9.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
    ...     pace.add_step(seconds)
    >>> pace.steps_per_second
    2.0
    """

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0
        self._before = 0.0  # seconds of the first steps

    def add_step(self, seconds: float) -> None:
        """Count a step that took so long."""
        self.steps += 1
        self.add_wait(seconds)

    def add_wait(self, seconds: float) -> None:
        """Count time spent waiting for steps that were counted before."""
        self.seconds += seconds
        if self.steps <= WARM_UP:
            self._before += seconds

    @property
    def steps_per_second(self) -> float:
        """Without the first `WARM_UP` steps; as long as there are no others, of those."""
        if self.steps <= WARM_UP:
            return self.steps / self.seconds if self.seconds else 0.0
        later = self.seconds - self._before
        return (self.steps - WARM_UP) / later if later else 0.0
