"""Human-written dates to ISO, character by character: "3rd of May, 1979" → "1979-05-03"."""

from __future__ import annotations

import datetime
import functools
import zlib
from collections.abc import Sequence
from functools import partial

from regard.support.declared import at_least, option
from regard_workbench.tasks.formats.direction import Direction
from regard_workbench.tasks.formats.splits import checked_split
from regard_workbench.tasks.generated.draws import Draws, Generated
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text.parallel import KnownSides, Pair, ParallelTask
from regard_workbench.tasks.text.vocabulary import Characters

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
# Spelt out here, because strftime asks the machine's language.
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# d, dd, o: 3, 03, 3rd. m, mm, mon, month: 5, 05, May, May. y: 1979. wd, weekday: Thu, Thursday.
WORDED = (
    "{d} {month} {y}",
    "{o} of {month}, {y}",
    "{o} of {month} {y}",
    "{o} {month} {y}",
    "{d} {mon} {y}",
    "{dd} {mon} {y}",
    "{d}. {month} {y}",
    "{d}-{mon}-{y}",
    "{dd}-{mon}-{y}",
    "{d}/{mon}/{y}",
    "{d}.{mon}.{y}",
    "{month} {d}, {y}",
    "{month} {d} {y}",
    "{month} {o}, {y}",
    "{month} {o} {y}",
    "{mon} {d}, {y}",
    "{mon} {d} {y}",
    "{mon}. {d}, {y}",
    "{month} the {o}, {y}",
    "the {o} of {month} {y}",
    "{weekday}, {d} {month} {y}",
    "{weekday} {d} {month} {y}",
    "{weekday}, {month} {d}, {y}",
    "{weekday} {o} {month} {y}",
    "{wd} {d} {mon} {y}",
    "{wd}, {d} {mon} {y}",
    "{wd} {mon} {d} {y}",
    "{wd}, {o} of {mon} {y}",
    "{y} {month} {d}",
    "{y}, {month} {o}",
    "{y} {mon} {dd}",
)
YEAR_FIRST = ("{y}-{mm}-{dd}", "{y}/{mm}/{dd}", "{y}.{mm}.{dd}", "{y}/{m}/{d}", "{y} {mm} {dd}", "{y}{mm}{dd}")
# Which of two numbers is the month? Used only for dates that leave no doubt.
NUMBERED = ("{d}/{m}/{y}", "{m}/{d}/{y}", "{dd}/{mm}/{y}", "{d}.{m}.{y}", "{dd}.{mm}.{y}", "{d}-{m}-{y}")

LONGEST = 32  # characters of a date as it is written
ISO = 10 + 1  # characters of an ISO date, and the end
TRAIN = 100_000
GENERATED = Direction("dates as people write them", "ISO dates")
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ,./-'"


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th … 11th, 12th, 13th … 31st."""
    ending = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def written(day: datetime.date, form: str) -> str:
    """A date in one of the forms."""
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    return form.format(
        d=day.day,
        dd=f"{day.day:02}",
        o=ordinal(day.day),
        m=day.month,
        mm=f"{day.month:02}",
        month=month,
        mon=month[:3],
        y=day.year,
        weekday=weekday,
        wd=weekday[:3],
    )


@functools.cache
def _days() -> dict[str, tuple[datetime.date, ...]]:
    tenths: list[list[datetime.date]] = [[] for _ in range(10)]
    for number in range((LAST - FIRST).days + 1):
        day = FIRST + datetime.timedelta(number)
        tenths[zlib.crc32(day.isoformat().encode()) % 10].append(day)
    return {
        "validation": tuple(tenths[0]),
        "test": tuple(tenths[1]),
        "train": tuple(sorted(day for tenth in tenths[2:] for day in tenth)),
    }


def days(split: str) -> tuple[datetime.date, ...]:
    """The days of a split: a tenth of all for validation, a tenth for the test, by a hash of the day."""
    return _days()[checked_split(split)]


def date_pair(split: str, index: int) -> tuple[str, str]:
    """A date as someone might write it, and in ISO form."""
    draws = Draws("dates", split, index)
    day = draws.among(days(split))
    forms: Sequence[str] = WORDED
    if draws.happens(20):
        forms = NUMBERED if (day.day > 12 or day.day == day.month) and draws.happens(50) else YEAR_FIRST
    text = written(day, draws.among(forms))
    change = draws.below(10)
    return (text.lower() if change < 2 else text.upper() if change == 2 else text), day.isoformat()


@task("dates")
class Dates(ParallelTask):
    """Turns dates as people write them into ISO form, 1900 to 2099. Generated; no day is in two splits."""

    tried = ("--text", "3rd of May, 1979")
    recipe = Recipe(
        model="seq2seq",
        steps=1600,
        batch_size=32,
        lr=2e-3,
        warmup=100,
        models={"transformer": "transformer(layers=2, dim=96, dropout=0.0)"},
        reaches={"exact_match": 0.99},
    )

    validation_size: int = option("how many dates are tried in a validation", at_least(1), default=500)
    test_size: int = option("how many dates are in the test set", at_least(1), default=1000)

    def fit(self) -> KnownSides:
        return KnownSides(Characters(sorted(_ALPHABET)), Characters(sorted("0123456789-")), LONGEST, ISO)

    def direction(self) -> Direction:
        """From free writing to ISO form."""
        return GENERATED

    def examples(self, split: str) -> Sequence[Pair]:
        """Pairs, generated on access."""
        sizes = {"train": TRAIN, "validation": self.validation_size, "test": self.test_size}
        return Generated(sizes[checked_split(split)], partial(self._example, split))

    def _example(self, split: str, index: int) -> Pair:
        text, iso = date_pair(split, index)
        sides = self.fitted
        return self.pair(sides.source_vocabulary.encode(text), sides.target_vocabulary.encode(iso), iso)
