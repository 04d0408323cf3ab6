"""Whether a folder is still the one that was opened: it may be moved or deleted while a run writes into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from regard.training.run_folder.durable import StorageFailed


class Moved(StorageFailed):
    """The folder of a run is no longer where the run was begun or resumed."""


class Place:
    """A folder that is held open. Its path may come to mean another folder, or none; what is held stays the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY) if os.name != "nt" else -1

    def close(self) -> None:
        """Let go of it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def check(self, last: str) -> None:
        """Raise if the path no longer leads to the folder; `last` is the newest checkpoint in it, if there is one."""
        if self._handle < 0 or self._is(self.path):
            return
        now = self._now()
        if now is None:
            left = f" Its last checkpoint was {last}." if last else ""
            raise Moved(
                f"{self.path} was deleted, moved or replaced while the run was training: nothing more was saved.{left} "
                "Restore it from a copy, or train again."
            )
        kept = (
            f"The last whole checkpoint is {now / 'checkpoints' / last}"
            if last
            else "It has no checkpoint yet"
        )
        raise Moved(
            f"{self.path} was moved to {now} while the run was training, so nothing more was saved. {kept}. Go on "
            f"with: regard train --resume {now}"
        )

    def _is(self, path: Path) -> bool:
        held = os.fstat(self._handle)
        try:
            there = os.stat(path)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def _now(self) -> Path | None:
        """Where the folder is, if it is anywhere and the system says so."""
        with suppress(OSError):
            found = Path(os.readlink(f"/proc/self/fd/{self._handle}"))
            return found if self._is(found) else None
        return None
