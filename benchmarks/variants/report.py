"""Where results go."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.variants.settings import forget


class Output:
    """Where results go, and the time that is left."""

    def __init__(self, path: str | None, seconds: float) -> None:
        self.path, self.begun, self.until = (None if path is None else Path(path), time.time(), time.time() + seconds)

    def write(self, shown: str, **found: Any) -> None:
        """One line for people, one for machines."""
        at = round(time.time() - self.begun, 1)
        print(f"[{at:6.1f}] {shown}", flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"at": at, **found}, default=str) + "\n")

    def attempt(self, name: str, run: Callable[[], None]) -> None:
        """Run one case; its failure is written down and the others go on."""
        if time.time() > self.until:
            self.write(f"{name}: not reached", case=name, skipped=True)
            return
        try:
            run()
        except Exception as problem:
            forget()
            self.write(
                f"{name}: FAILED {type(problem).__name__}: {str(problem)[:200]}",
                case=name,
                failed=traceback.format_exc(),
            )
