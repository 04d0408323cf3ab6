"""Processes of their own: some answer at once, contestants wait for their turn."""

from __future__ import annotations

import multiprocessing
import queue
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from bench.small_checking.report import Report
from bench.small_checking.steps import contestant
from bench.small_checking.training import CONTESTANTS

SPAWN = multiprocessing.get_context("spawn")


def aside(function: Callable[..., Any], number: int, device: str, answers: Any) -> None:
    """In a process of its own: call a part and send what it returns, or its traceback."""
    torch.set_num_threads(1)
    try:
        answers.put(function(number, device))
    except Exception:
        answers.put({"part": function.__name__, "number": number, "error": traceback.format_exc()})


class Aside(NamedTuple):
    """A process that answers one question of a part."""

    part: str
    process: Any
    answers: Any


def start_aside(part: str, function: Callable[..., Any], number: int, device: str) -> Aside:
    """Let a process of its own answer."""
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=aside, args=(function, number, device, answers), daemon=True)
    process.start()
    return Aside(part, process, answers)


def collect(asides: Iterable[Aside], end: float, report: Report) -> None:
    """Report the answers that come before `end`; whoever has not answered by then is ended."""
    for part, process, answers in asides:
        try:
            found = answers.get(timeout=max(0.1, end - time.monotonic()))
        except queue.Empty:
            found = {"error": f"{part}: not done in time"}
        process.kill()
        if found:
            report.add(part, found)


class Contestant(NamedTuple):
    """A process that trains: it tells when it is `warm`, and waits for its `turn` before each timing."""

    task: str
    model: str
    tuning: dict[str, int]
    process: Any
    warm: Any
    turn: Any
    answers: Any


def start_contestant(task: str, model: str, tuning: dict[str, int], device: str, seconds: float) -> Contestant:
    """Let a training warm up."""
    warm, turn, answers = SPAWN.Semaphore(0), SPAWN.Semaphore(0), SPAWN.Queue()
    arguments = (task, model, device, seconds, tuning, warm, turn, answers)
    process = SPAWN.Process(target=contestant, args=arguments, daemon=True)
    process.start()
    return Contestant(task, model, tuning, process, warm, turn, answers)


def end_the_cold(started: Iterable[Contestant], end: float) -> None:
    """End whoever is not warm by `end`, so that the GPU is quiet."""
    for one in started:
        if not one.warm.acquire(timeout=max(0.0, end - time.monotonic())):
            one.process.kill()


def take_turns(started: list[Contestant], device: str, seconds: float, report: Report) -> None:
    """Time the contestants one after the other, then end them."""
    # Groups after all single steps, and those that have crashed last: what comes first is then certain.
    turns = [("single", one) for one in started] + [("grouped", one) for one in started[: len(CONTESTANTS)]]
    turns.sort(key=lambda pair: pair[0] == "grouped" and "lstm" in pair[1].model)
    for mode, one in turns:
        one.turn.release()
        try:
            found = one.answers.get(timeout=4 * seconds + (20 if one.process.is_alive() else 0.1))
        except queue.Empty:
            found = {"task": one.task, "model": one.model, "mode": mode, "error": "not warm or not done in time"}
            one.process.kill()
        if device == "cpu" and mode == "grouped":
            continue
        report.add("steps", {**found, "tuning": one.tuning})
    for one in started:
        one.process.kill()
