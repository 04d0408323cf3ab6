"""Answers: what a model is asked for, one file each."""

from regard.tasks.answers.acts import Acts
from regard.tasks.answers.answer import NEEDS, Answer, Decoded, Head
from regard.tasks.answers.bits import Bits
from regard.tasks.answers.boxes import Boxes
from regard.tasks.answers.classes import EachOf, OneOf
from regard.tasks.answers.forecast import Forecast, ForecastSteps, PooledForecast
from regard.tasks.answers.glances import OneOfAfterEach
from regard.tasks.answers.items import NextItem
from regard.tasks.answers.pixels import PixelClasses
from regard.tasks.answers.ranks import Ranks
from regard.tasks.answers.slots import Slot, SlotValues
from regard.tasks.answers.tags import Tags
from regard.tasks.answers.text import HiddenTokens, NextToken, Writes, shifted
from regard.tasks.answers.vectors import PastRowVectors, RowVectors

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
