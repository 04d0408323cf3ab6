"""Running cases and showing the results: rows as JSON, a table to read."""

from __future__ import annotations

import datetime
import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from regard_workbench.bench.case import Case, Setting

Row = dict[str, object]
CompileAhead = Callable[[Sequence[Case], Setting, float], int]  # returns in how many processes it compiled


def run(
    cases: Sequence[Case],
    setting: Setting,
    announce: Callable[[str], None] = lambda text: None,
    each: Callable[[list[Row]], None] = lambda rows: None,
    seconds: float = math.inf,
    compile_ahead: CompileAhead = lambda cases, setting, seconds: 0,
) -> list[Row]:
    """Measure the cases one after the other; after `seconds` no further one is started.

    `announce` is called with the case that starts and with each result, `each` with all rows so far after every case.
    `compile_ahead` compiles kernels for the cases, in other processes, before the first one is timed.
    """
    started, about = time.perf_counter(), environment(setting)
    rows: list[Row] = []
    with _threads(setting), _old_objects_forgotten() as forget:
        workers = compile_ahead(cases, setting, seconds)
        if workers:
            announce(f"compiled ahead in {workers} processes, {time.perf_counter() - started:.0f} s")
        forget()
        for number, case in enumerate(cases, start=1):
            if time.perf_counter() - started > seconds:
                announce(f"no time left for {len(cases) - len(rows)} cases, from {case.name} on")
                break
            announce(f"[{number}/{len(cases)}] {case.name}")
            start = time.perf_counter()
            rows.append({**_measured(case, setting), **about, "spent": round(time.perf_counter() - start, 1)})
            announce(line(rows[-1]))
            each(rows)
            if setting.device == "cuda":  # free the memory of this case for the next one
                gc.collect()
                torch.cuda.empty_cache()
    return rows


def _measured(case: Case, setting: Setting) -> Row:
    """The row of one case; an exception is recorded in it, and the other cases go on."""
    try:
        return case.row(case.measure(setting), setting)
    except Exception as trouble:
        return case.failed(trouble, setting)


def line(row: Row) -> str:
    """A row on one line, for progress."""
    cells = _cells(row)
    shown = [cells[3], *cells[5:-1]] if row["trouble"] is None else [str(row["trouble"])]
    return "  ".join([f"{cells[0]:28s}", *shown, f"[{row['impl']}] against {row['peer']}, {row['spent']} s"])


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
TIMES = ("ours", "peer")  # two more columns where a GPU was measured


def table(rows: Sequence[Row]) -> Table:
    """One line per number: measured, bar, met or MISSED."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in _headers(rows):
        right = header in ("measured", "quartiles", "bar", *TIMES)
        shown.add_column(header, justify="right" if right else "left", overflow="fold")
    for row in rows:
        *cells, verdict, plan = _cells(row)
        style = {"met": "green", "MISSED": "bold red", "FAILED": "bold red"}.get(verdict, "dim")
        shown.add_row(*cells, Text(verdict, style=style), plan)
    return shown


def _headers(rows: Sequence[Row]) -> list[str]:
    timed = any(row["device"] == "cuda" for row in rows)
    return [*HEADERS[:5], *(TIMES if timed else ()), *HEADERS[5:]]


def markdown(rows: Sequence[Row]) -> str:
    """The same table for a document, with the footer under it."""
    headers = _headers(rows)
    lines = [headers, ["---"] * len(headers), *map(_cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{footer(rows)}"


def _cells(row: Row) -> list[str]:
    sign = {"<=": "≤", ">=": "≥"}[str(row["relation"])]
    broken = row["trouble"] is not None
    times = [_time(row["ours_seconds"]), _time(row["peer_seconds"])] if row["device"] == "cuda" else []
    return [
        str(row["name"]),
        str(row["work"]),
        str(row["peer"]),
        "–" if broken else f"{_short(row['measured'])} {row['unit']}",
        str(row["trouble"])[:200] if broken else f"{_short(row['low'])} to {_short(row['high'])}",
        *times,
        "–" if row["bar"] is None else f"{sign} {row['bar']:g}",
        "FAILED" if broken else "not judged" if row["met"] is None else "met" if row["met"] else "MISSED",
        str(row["impl"]),
    ]


def _time(seconds: object) -> str:
    if not isinstance(seconds, float):
        return "–"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def footer(rows: Sequence[Row]) -> str:
    """One line under the table: how many bars were met, and on which machine."""
    if not rows:
        return "nothing was measured"
    about = rows[0]
    judged = [row for row in rows if row["met"] is not None]
    verdict = f"{sum(bool(row['met']) for row in judged)} of {len(judged)} bars met" if judged else "no bars here"
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


@contextmanager
def _old_objects_forgotten() -> Iterator[Callable[[], None]]:
    """Yields a function after which the garbage collector no longer goes over what exists by then.

    It runs before every timing, and the modules of torch's compiler alone cost it a quarter of a second.
    """

    def forget() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield forget
    finally:
        gc.unfreeze()


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
