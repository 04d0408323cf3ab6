"""Answers: what a model is asked for, one file each."""

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard_workbench.tasks.answers.acts import Acts
    from regard_workbench.tasks.answers.answer import NEEDS, Answer, Decoded, Head
    from regard_workbench.tasks.answers.bits import Bits
    from regard_workbench.tasks.answers.boxes import Boxes
    from regard_workbench.tasks.answers.classes import EachOf, HiddenTokens, OneOf
    from regard_workbench.tasks.answers.forecast import Forecast, ForecastSteps, PooledForecast
    from regard_workbench.tasks.answers.glances import OneOfAfterEach
    from regard_workbench.tasks.answers.items import NextItem
    from regard_workbench.tasks.answers.made_picture import MadePicture
    from regard_workbench.tasks.answers.pixels import PixelClasses
    from regard_workbench.tasks.answers.ranks import Ranks
    from regard_workbench.tasks.answers.slots import Slot, SlotValues
    from regard_workbench.tasks.answers.tags import Tags
    from regard_workbench.tasks.answers.text import NextToken, Writes, shifted
    from regard_workbench.tasks.answers.vectors import PastRowVectors, RowVectors

__all__ = [
    "NEEDS",
    "Acts",
    "Answer",
    "Bits",
    "Boxes",
    "Decoded",
    "EachOf",
    "Forecast",
    "ForecastSteps",
    "Head",
    "HiddenTokens",
    "MadePicture",
    "NextItem",
    "NextToken",
    "OneOf",
    "OneOfAfterEach",
    "PastRowVectors",
    "PixelClasses",
    "PooledForecast",
    "Ranks",
    "RowVectors",
    "Slot",
    "SlotValues",
    "Tags",
    "Writes",
    "shifted",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
