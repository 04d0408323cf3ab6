"""Detect that a run folder was moved or deleted while the run writes into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from regard_workbench.training.run_folder.durable import StorageFailed, reporting


class Moved(StorageFailed):
    """The run folder is no longer where the run was started or resumed."""


class OpenFolder:
    """A folder with an open handle: the handle still refers to the same folder after its path changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reporting(path):
            self._handle = os.open(path, os.O_RDONLY) if os.name != "nt" else -1

    def close(self) -> None:
        """Close the handle."""
        if self._handle >= 0:
            with suppress(OSError):  # nothing was written through it; an error here would hide an earlier one
                os.close(self._handle)
            self._handle = -1

    def check(self, last: str) -> None:
        """Raise `Moved` if the path no longer leads to this folder. `last` names its newest checkpoint, or is empty."""
        if self._handle < 0 or self._is_at(self.path):
            return
        path = self._current_path()
        if path is None:
            left = f" Its last checkpoint was {last}." if last else ""
            raise Moved(
                f"{self.path} was deleted, moved or replaced while the run was training: nothing more was saved.{left} "
                "Restore it from a copy, or train again."
            )
        kept = f"The last complete checkpoint is {path / 'checkpoints' / last}" if last else "It has no checkpoint yet"
        raise Moved(
            f"{self.path} was moved to {path} while the run was training, so nothing more was saved. {kept}. Continue "
            f"with: regard train --resume {path}"
        )

    def _is_at(self, path: Path) -> bool:
        with reporting(self.path):
            held = os.fstat(self._handle)
        try:
            there = os.stat(path)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def _current_path(self) -> Path | None:
        """The current path of the folder, if it still exists and the system tells."""
        with suppress(OSError):
            found = Path(os.readlink(f"/proc/self/fd/{self._handle}"))
            return found if self._is_at(found) else None
        return None
