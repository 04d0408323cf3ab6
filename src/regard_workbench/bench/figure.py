"""A figure of a benchmark: the speed of each case relative to its best peer; at 1 both are equally fast.

regard bench --device cuda --json rows.json
python -m regard_workbench.bench.figure rows.json speed.svg    # later, and on any machine
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard_workbench.bench.run import Row
from regard_workbench.figures.style import blank, logarithmic, shortened, style
from regard_workbench.tasks.figures.colours import COLOURS, INK, MUTED

AHEAD, BEHIND = COLOURS[0], COLOURS[1]
WIDTH, LINE, AROUND = 6.6, 0.17, 0.9  # inches
LONGEST = 34
STEPS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)  # where the axis is labelled


def speed(row: Row) -> float | None:
    """The peer's time divided by ours; None where nothing was timed against a peer."""
    ours, peer = row["ours_seconds"], row["peer_seconds"]
    return peer / ours if isinstance(ours, float) and isinstance(peer, float) and ours else None


def wanted(row: Row) -> float | None:
    """The speed at which the row's bar is met, if the bar is relative to a peer."""
    bar = row["bar"]
    if not isinstance(bar, int | float) or row["unit"] not in ("× time", "× faster"):
        return None
    return 1 / bar if row["unit"] == "× time" else float(bar)


def drawn(rows: Sequence[Row]) -> Figure:
    """Bars from 1 to the speed of each row that has one, its peer's name beside it, a tick at its bar."""
    shown = [row for row in rows if speed(row) is not None]
    with style():
        figure, frame = blank(WIDTH, AROUND + LINE * max(1, len(shown)))
        for position, row in enumerate(shown):
            _bar(frame, position, row)
        frame.axvline(1.0, color=INK, linewidth=0.9)
        frame.set_yticks(range(len(shown)), [shortened(str(row["name"]), LONGEST) for row in shown])
        frame.set_ylim(len(shown) - 0.4, -0.6)
        frame.tick_params(axis="y", labelsize=6.5, length=0)
        frame.grid(axis="y", visible=False)
        speeds = [factor for row in shown if (factor := speed(row)) is not None]
        low, high = min(0.8, *speeds, 1.0) / 1.1, max(1.25, *speeds, 1.0) * 2.2
        frame.set_xlim(low, high)
        logarithmic(frame, "x")
        steps = [step for step in STEPS if low <= step <= high]
        frame.set_xticks(steps, [f"{step:g}×" for step in steps])
        frame.set_xticks([], minor=True)
        where = str(rows[0]["device_name"]) if rows else ""
        frame.set_xlabel(f"speed beside the best peer (line: equally fast; tick: the bar), {where}")
    return figure


def _bar(frame: Axes, position: int, row: Row) -> None:
    factor, bar = speed(row), wanted(row)
    assert factor is not None
    frame.barh(position, factor - 1.0, left=1.0, height=0.68, color=AHEAD if factor >= 1 else BEHIND)
    if bar is not None:
        frame.plot([bar, bar], [position - 0.45, position + 0.45], color=MUTED, linewidth=1.2)
    beside = f"{factor:.3g}× {shortened(str(row['peer']), LONGEST)}"
    right = max(factor, 1.0, bar or 1.0)  # beyond the bar's tick, so that neither hides the other
    frame.annotate(
        beside, (right, position), xytext=(4, 0), textcoords="offset points", va="center", fontsize=5.5, color=MUTED
    )


def draw(rows: Sequence[Row], path: str | Path) -> None:
    """Write the figure; the suffix of the path is its format."""
    with style():
        drawn(rows).savefig(path, dpi=200)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
