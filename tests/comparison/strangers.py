"""A file as a user passes it with `--use`: the toy task and its model, and two models that fail in their own ways."""

import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # a process that loads this file may stand anywhere

from regard.errors import BadValue
from regard.models import model
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


toy.register()
model("falls", serves=("classify",))(Falls)
model("refuses", serves=("classify",))(Refuses)
