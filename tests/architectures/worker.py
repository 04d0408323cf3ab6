"""A process that observes architectures, one line of JSON for each: `python -m tests.architectures.worker LIBRARY`.

Names come on stdin. The process that reads its stdout restarts it when it dies or takes too long.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tests.architectures.building import NoModel, NotBuilt, TimeIsUp


def library(name: str) -> Any:
    """The module that names and builds the architectures of a library."""
    _import_timm()
    if name == "timm":
        from tests.architectures import timm_models

        return timm_models
    if name == "torch_geometric":
        from tests.architectures import geometric

        return geometric
    import transformers

    transformers.logging.set_verbosity_error()
    from tests.architectures import huggingface

    return huggingface


def _import_timm() -> None:
    """Import timm, if it is installed: transformers builds some of its models from it."""
    if find_spec("timm") is None:
        return
    if find_spec("torchvision") is None:
        from tests.observation.peers import stand_in_for_torchvision

        with stand_in_for_torchvision():
            import_module("timm")
    else:
        import_module("timm")


def examine(source: Any, name: str, attend: str | None, seconds: float) -> dict[str, Any]:
    """The record of one architecture."""
    from tests.architectures import observation, on_regard

    study: Any = on_regard if attend == "regard" else observation
    begun = time.perf_counter()
    record: dict[str, Any] = {"name": name, "attend": attend or "default"}
    reasons: list[str] = []
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # CPU time, so that a busy machine changes no result
    try:
        built = source.build(name, "eager" if attend == "regard" else attend, study.count, reasons)
        record |= {"class": built.kind, "rules": built.rules, "inputs": sorted(built.inputs)}
        record["parameters"] = sum(one.numel() for one in built.model.parameters())
        record |= study.look(built.model, built.inputs)
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


def main() -> None:
    """Read names, write records."""
    name, seconds, gigabytes, attend = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    source = library(name)
    statm = Path("/proc/self/statm")  # pages; the sixth number is data
    used = int(statm.read_text().split()[5]) * resource.getpagesize() if statm.exists() else 0
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(gigabytes * 2**30), resource.RLIM_INFINITY))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        record = examine(source, line.strip(), None if attend == "default" else attend, seconds)
        gc.collect()
        print(json.dumps(record), file=out, flush=True)


if __name__ == "__main__":
    main()
