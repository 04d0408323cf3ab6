"""A file as a user passes it with `--use`: the toy task and its model, and models that fail in their own ways."""

import ctypes
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a process that loads this file may stand anywhere

from regard.errors import BadValue
from regard_workbench.models import model
from tests.training import toy


class Falls(toy.ToyNet):
    """Answers, and then no more."""

    def forward(self, batch):
        if self.training:
            raise RuntimeError("the floor gave way\nsecond line")
        return super().forward(batch)


class Refuses(toy.ToyNet):
    """Cannot be built."""

    def __init__(self, problem, **options):
        raise BadValue("model: refuses is not to be had.")


class Deadlocks(toy.ToyNet):
    """Waits for ever inside a C library that keeps Python's lock: no thread and no signal handler runs any more."""

    def forward(self, batch):
        if self.training and self.calls == 5:
            lock = ctypes.PyDLL(None).pthread_mutex_lock
            mutex = ctypes.create_string_buffer(256)
            lock(mutex)
            Path(os.environ.get("REGARD_TOY_MARK", os.devnull)).write_text("deadlocked")
            lock(mutex)
        return super().forward(batch)


toy.register()
model("falls", gives=("pooled",))(Falls)
model("deadlocks", gives=("pooled",))(Deadlocks)
model("refuses", gives=("pooled",))(Refuses)
