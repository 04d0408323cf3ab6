"""A cache of responses bounded by its bytes; the least recently used is dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

MEBIBYTE = 1 << 20


class ByteCache:
    """Values by key, at most `most` bytes. Thread-safe; a value is not computed twice at the same time."""

    def __init__(self, most: int = 256 * MEBIBYTE) -> None:
        self.most, self.bytes = most, 0
        self._answers: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._working: dict[Hashable, threading.Event] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, question: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """The cached value, else a new one; a value larger than the whole cache is returned and not stored."""
        while True:
            with self._lock:
                if question in self._answers:
                    self._answers.move_to_end(question)
                    return self._answers[question][0]
                waiting = self._working.get(question)
                if waiting is None:
                    self._working[question] = threading.Event()
                    break
            waiting.wait()  # another thread computes it; if that fails, this one tries
        try:
            answer = make()
            self._keep(question, answer, size(answer))
            return answer
        finally:
            with self._lock:
                self._working.pop(question).set()

    def _keep(self, question: Hashable, answer: Any, size: int) -> None:
        if size > self.most:
            return
        with self._lock:
            self._answers[question] = (answer, size)
            self.bytes += size
            while self.bytes > self.most:
                _, (_, freed) = self._answers.popitem(last=False)
                self.bytes -= freed
