"""Running cases and showing what came out: rows for machines, a table for people."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from regard.benchmarks.case import Case, Setting

Row = dict[str, object]


def run(
    cases: Sequence[Case], setting: Setting, announce: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Measure the cases one after the other; `announce` hears which one is on."""
    about = environment(setting)
    rows: list[Row] = []
    with _threads(setting):
        for number, case in enumerate(cases, start=1):
            announce(f"[{number}/{len(cases)}] {case.name}")
            rows.append({**case.row(case.measure(setting), setting), **about})
    return rows


def environment(setting: Setting) -> Row:
    """What a number depends on besides the code."""
    cuda = setting.device == "cuda"
    return {
        "device": setting.device,
        "device_name": torch.cuda.get_device_name() if cuda else _processor(),
        "threads": setting.threads,
        "quick": setting.quick,
        "torch": torch.__version__,
        "regard": _own_version(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),  # a busy machine at the start explains a wide spread
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


HEADERS = ("case", "work", "against", "measured", "quartiles", "bar", "", "plan")


def table(rows: Sequence[Row]) -> Table:
    """One line per number: measured, bar, met or MISSED."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in HEADERS:
        right = header in ("measured", "quartiles", "bar")
        shown.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        *cells, verdict, plan = _cells(row)
        style = {"met": "green", "MISSED": "bold red"}.get(verdict, "dim")
        shown.add_row(*cells, Text(verdict, style=style), plan)
    return shown


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a document, with the footer under it."""
    lines = [HEADERS, ["---"] * len(HEADERS), *map(_cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{footer(rows)}"


def _cells(row: Row) -> list[str]:
    sign = {"<=": "≤", ">=": "≥"}[str(row["relation"])]
    return [
        str(row["name"]),
        str(row["work"]),
        str(row["peer"]),
        f"{_short(row['measured'])} {row['unit']}",
        f"{_short(row['low'])} to {_short(row['high'])}",
        "–" if row["bar"] is None else f"{sign} {row['bar']:g}",
        "not judged" if row["met"] is None else "met" if row["met"] else "MISSED",
        str(row["impl"]),
    ]


def footer(rows: Sequence[Row]) -> str:
    """One line under the table: the verdict in numbers and where it was reached."""
    about = rows[0]
    judged = [row for row in rows if row["met"] is not None]
    verdict = (
        f"{sum(bool(row['met']) for row in judged)} of {len(judged)} bars met" if judged else "no bars here"
    )
    threads = f", {about['threads']} threads" if about["device"] == "cpu" else ""
    quick = "; quick: few repeats, not for the record" if about["quick"] else ""
    busy = f", load {about['load']} at the start" if float(str(about["load"])) > 1 else ""
    return (
        f"{verdict}; {about['device_name']}{threads}, torch {about['torch']}, "
        f"python {about['python']}, {about['date']}{busy}{quick}"
    )


def _short(number: object) -> str:
    assert isinstance(number, int | float)
    return f"{number:.2f}" if abs(number) < 10 else f"{number:.1f}" if abs(number) < 100 else f"{number:.0f}"


@contextmanager
def _threads(setting: Setting) -> Iterator[None]:
    before = torch.get_num_threads()
    if setting.device == "cpu":
        torch.set_num_threads(setting.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _own_version() -> str:
    try:
        return version("regard")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
