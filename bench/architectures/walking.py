"""A walk over architectures: each is built and compared in a process of its own, which may die or hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tests.observation import peers

from bench.architectures import huggingface, on_regard
from bench.architectures.building import NoModel, NotBuilt, TimeIsUp
from bench.architectures.records import Records, installed

GRACE = 5.0  # times the processor time of a comparison: after so long it is taken to hang
CONTEXT = multiprocessing.get_context("forkserver")


def load_libraries() -> None:
    """Import transformers, and timm where it is installed: transformers builds some of its models from it."""
    import transformers

    transformers.logging.set_verbosity_error()
    if find_spec("timm") is None:
        return
    with contextlib.nullcontext() if find_spec("torchvision") else peers.stand_in_for_torchvision():
        import_module("timm")


load_libraries()  # at once, so that the server from which processes are forked has them


def examine(name: str, seconds: float, source: Any = huggingface) -> dict[str, Any]:
    """The record of one architecture; `seconds` of processor time are all it may take."""
    begun = time.perf_counter()
    record: dict[str, Any] = {"name": name, "attend": "regard"}
    reasons: list[str] = []
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # processor time, so that a busy machine changes no result
    try:
        built = source.build(name, "eager", on_regard.count, reasons)
        record |= {"class": built.kind, "rules": built.rules, "inputs": sorted(built.inputs)}
        record["parameters"] = sum(one.numel() for one in built.model.parameters())
        record |= on_regard.look(built.model, built.inputs)
    except NoModel as error:
        record |= {"status": "no model of its own", "reason": str(error)}
    except NotBuilt as error:
        record |= {"status": "could not be built", "reason": str(error), "reasons": error.reasons[:20]}
    except TimeIsUp:
        record |= {"status": "could not be built", "reason": f"more than {seconds:.0f} s", "reasons": reasons[:20]}
    except Exception as error:
        record |= {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[:500]}"}
        record["trace"] = traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    record["seconds_in_all"] = round(time.perf_counter() - begun, 2)
    return record


def _stop(number: int, frame: Any) -> None:
    raise TimeIsUp


def _send(
    answer: Connection, compare: Callable[[str, float], dict[str, Any]], name: str, seconds: float, gigabytes: float
) -> None:
    """In a process of its own: send the record of an architecture."""
    os.dup2(2, 1)  # libraries print
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    statm = Path("/proc/self/statm")  # pages; the sixth number is data
    used = int(statm.read_text().split()[5]) * resource.getpagesize() if statm.exists() else 0
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(gigabytes * 2**30), resource.RLIM_INFINITY))
    answer.send(compare(name, seconds))


def examine_all(
    names: Sequence[str],
    jobs: int,
    seconds: float,
    gigabytes: float,
    told: Callable[[dict[str, Any]], None],
    total: float = float("inf"),
    compare: Callable[[str, float], dict[str, Any]] = examine,
) -> Records:
    """The records of architectures, in the order of their names. `told` is called with each record.

    After `total` seconds all processes are ended, and what they had not finished has no record.
    """
    CONTEXT.set_forkserver_preload([__name__])
    until = time.monotonic() + total

    def in_a_process(name: str) -> dict[str, Any] | None:
        if time.monotonic() >= until:
            return None
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_send, args=(theirs, compare, name, seconds, gigabytes))
        process.start()
        theirs.close()
        record: dict[str, Any] = {"name": name, "attend": "regard", "status": "could not be built"}
        try:
            if ours.poll(max(0.0, min(GRACE * seconds, until - time.monotonic()))):
                record = ours.recv()
            elif time.monotonic() >= until:
                return None
            else:
                record["reason"] = "took too long and could not be interrupted"
        except EOFError:
            process.join()
            record["reason"] = f"the process died ({process.exitcode})"
        finally:
            process.kill()
            process.join()
        record |= {"library": "transformers", "with": installed("transformers")}
        told(record)
        return record

    with ThreadPoolExecutor(max(1, jobs)) as threads:
        return [record for record in threads.map(in_a_process, names) if record is not None]
