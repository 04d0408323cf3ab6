"""The file of results, and the limits of time."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Report:
    """The file of results, and when the stage that is running must end."""

    def __init__(self, path: str | None, only: str = "") -> None:
        """`only`: how the names of the cases to try begin, joined by commas."""
        self.path, self.begun, self.until = None if path is None else Path(path), time.time(), 0.0
        self.only = tuple(only.split(","))

    def write(self, stage: str, case: str, **found: Any) -> None:
        line = json.dumps(
            {"stage": stage, "case": case, "at": round(time.time() - self.begun, 1), **found}, default=str
        )
        print(line[:400], flush=True)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(line + "\n")

    def try_case(self, stage: str, case: str, run: Callable[[], dict[str, Any]]) -> None:
        if not case.startswith(self.only):
            return
        if time.time() > self.until:
            self.write(stage, case, skipped="the time of this stage is over")
            return
        try:
            self.write(stage, case, **run())
        except Exception:
            self.write(stage, case, failed=traceback.format_exc())
