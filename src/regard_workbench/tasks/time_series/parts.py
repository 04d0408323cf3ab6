"""Which rows of a series are for training, for validation and for the test: "12/4/4 months", "70/10/20 %".

>>> from regard_workbench.tasks.time_series.parts import borders
>>> borders("12/4/4 months", 17420, 3600.0)
(8640, 11520, 14400)
>>> borders("70/10/20 %", 1000, None)
(700, 800, 1000)
"""

from __future__ import annotations

import re

from regard.errors import BadValue

DAY = 86400
# A month is 30 days, as the published results on the ETT sets count it.
UNITS = {"years": 365 * DAY, "months": 30 * DAY, "weeks": 7 * DAY, "days": DAY, "hours": DAY // 24, "minutes": 60}
FORM = re.compile(r"\s*(\d+)\s*/\s*(\d+)\s*/\s*(\d+)\s*(%|[a-z]+)\s*")
EXAMPLES = '"12/4/4 months" or "70/10/20 %"'


MONTHS, SHARES = "12/4/4 months", "70/10/20 %"


def usual_split(rows: int, step: float | None) -> str:
    """Months as for the ETT sets where the rows are dated and hold twenty of them; else shares."""
    return SHARES if step is None or rows * step < 20 * UNITS["months"] else MONTHS


def borders(split: str, rows: int, step: float | None) -> tuple[int, int, int]:
    """Where training, validation and test end. `step`: seconds between two rows; None: times are not dates.

    Rows after the test part are not used, as is usual for the ETT sets.
    """
    match = FORM.fullmatch(split)
    unit = "" if match is None else match[4] + ("" if match[4].endswith(("s", "%")) else "s")
    if match is None or unit not in (*UNITS, "rows", "%"):
        raise BadValue(
            f"split: expected three numbers and a unit ({', '.join(UNITS)}, rows or %), for instance {EXAMPLES}; "
            f"got {split!r}."
        )
    sizes = [int(match[number]) for number in (1, 2, 3)]
    if 0 in sizes:
        raise BadValue(f"split: expected three parts above 0, got {split!r}.")
    if unit == "%":
        if sum(sizes) != 100:
            raise BadValue(f"split: expected parts that add up to 100 %, got {split!r} ({sum(sizes)} %).")
        train, test = rows * sizes[0] // 100, rows * sizes[2] // 100
        return train, rows - test, rows
    if unit != "rows" and step is None:
        raise BadValue(
            f'split: the times of this series are numbers, not dates: count in rows or in %, as "70/10/20 %"; got '
            f"{split!r}."
        )
    rows_per_unit = 1.0 if unit == "rows" or step is None else UNITS[unit] / step
    ends = [round(sum(sizes[: number + 1]) * rows_per_unit) for number in range(3)]
    if ends[2] > rows:
        length = f"{rows / rows_per_unit:.1f} {unit}" if unit != "rows" else f"{rows:,}"
        raise BadValue(
            f"split: {split!r} asks for {sum(sizes)} {unit}, and the series has {length} ({rows:,} rows). "
            'Ask for less, or for shares: split="70/10/20 %".'
        )
    return ends[0], ends[1], ends[2]
