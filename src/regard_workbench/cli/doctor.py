"""`regard doctor`: what this machine can do, what is missing and how to get it, how fast each implementation is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard_workbench.cli.common.code_caches import VARIABLES, danger, folder_of
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Show what this machine can do, what is missing and how to get it, and how fast each implementation is."
EXAMPLES = ("regard doctor", "regard doctor --device cpu --json > machine.json")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    devices = "where to time the implementations; auto takes cuda when there is one"
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help=devices)
    parser.add_argument("--no-speed", action="store_true", help="time nothing")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    """Look around and print. A missing extra is no error."""
    import torch

    from regard_workbench.bench import machine

    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise BadValue("--device: cuda was asked for, but torch sees no CUDA device here; try --device cpu")
    report: dict[str, Any] = {"machine": machine.hardware(), "extras": machine.extras(), "caches": _caches()}
    if not options.no_speed:
        report["speeds"] = machine.speeds(device, tell)
    if options.json:
        print(json.dumps(report, indent=1, ensure_ascii=False))
        return 0
    _show(report)
    return 0


def _caches() -> list[dict[str, Any]]:
    """The folders from which torch and Triton load compiled code, and who else could put code there."""
    return [
        {"name": name, "folder": str(folder := folder_of(name)), "danger": danger(folder) or None} for name in VARIABLES
    ]


def _show(found: dict[str, Any]) -> None:
    facts = found["machine"]
    print(f"regard {facts['regard']}, torch {facts['torch']}, Python {facts['python']}")
    memory = f", {facts['memory_gib']} GiB" if "memory_gib" in facts else ""
    print(printable(f"{facts['system']}, {facts['processor']}, {facts['cores']} cores{memory}"))
    for gpu in facts["gpus"]:
        print(printable(f"GPU: {gpu['name']}, {gpu['memory_gib']} GiB, capability {gpu['capability']}"))
    if not facts["gpus"]:
        print("GPU: none that torch sees; everything runs on the CPU")
    print(f"Triton: {facts['triton'] or 'not installed'}")
    print("\nextras")
    width = max(len(row["extra"]) for row in found["extras"])
    for row in found["extras"]:
        state = "yes" if row["installed"] else f"missing {', '.join(row['missing']) or 'its metadata'}"
        get = f"; {row['get']}" if row["get"] else ""
        print(f"  {row['extra']:<{width}}  {row['for']}: {state}{get}")
    for row in found["caches"]:
        if row["danger"]:
            print(
                printable(
                    f"\nwarning: {row['folder']}, from which {row['name']} loads compiled code, {row['danger']}. Set "
                    f"{VARIABLES[row['name']]} to a folder of yours"
                )
            )
    if "speeds" in found:
        shape = "×".join(str(size) for size in found["speeds"][0]["shape"])
        print(f"\ncausal attention, {shape} (batch, heads, length, width), {found['speeds'][0]['dtype']}")
        for row in found["speeds"]:
            print(printable(f"  {row['implementation']:<10} {_speed(row)}"))


def _speed(row: dict[str, Any]) -> str:
    if row["why_not"] is not None:
        return f"cannot run here: {row['why_not']}"
    forward = f"{_time(row['forward_ms'])} forward"
    if row["why_no_training"] is not None:
        return f"{forward}; cannot train here: {row['why_no_training']}"
    return f"{forward}, {_time(row['training_ms'])} forward and backward"


def _time(found: float | str) -> str:
    return found if isinstance(found, str) else f"{found:.3g} ms"
