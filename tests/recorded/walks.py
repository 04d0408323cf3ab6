"""How many modules a command loads, and how many functions of ours a call passes."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch

import regard
from regard import masks

LOADED = """
import contextlib, io, json, sys
from regard_workbench.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    with contextlib.suppress(SystemExit):
        main(json.loads(sys.argv[1]))
ours = [name for name in sys.modules if name.split(".")[0].startswith("regard")]
print(len(ours), "torch" in sys.modules)
"""
COMMANDS = {
    "help": ["--help"],
    "list": ["list"],
    "list tasks": ["list", "tasks"],
    "train dates": ["train", "dates", "--steps", "1", "--out", "run"],
}


def loaded(words: list[str], folder: str) -> str:
    """How many of our modules a command loads, and whether it loads torch."""
    ended = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(words)], capture_output=True, text=True, cwd=folder
    )
    return ended.stdout.strip() or ended.stderr.strip()[-300:]


def walked(call: Callable[[], object]) -> dict[str, int]:
    """Calls of our functions, how many functions and files they are."""
    root = str(Path(regard.__file__).parent)
    passed: list[tuple[str, str]] = []

    def note(frame: object, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_flags & 1:
            passed.append((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"calls": len(passed), "functions": len(set(passed)), "files": len({path for path, _ in passed})}


def record() -> dict[str, object]:
    """The section `walks`."""
    import tempfile

    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 256, 32).unbind()
    layer, rows = regard.nn.build("local", dim=64, num_heads=4, window=17), torch.randn(2, 64, 64)
    calls: dict[str, Callable[[], object]] = {
        "attend": lambda: regard.attend(query, key, value),
        "attend causal": lambda: regard.attend(query, key, value, mask=masks.causal()),
        "attend window": lambda: regard.attend(query, key, value, mask=masks.window(31, 0)),
        "weights": lambda: regard.weights(query, key, mask=masks.causal(), rows=[3]),
        "build local": lambda: regard.nn.build("local", dim=64, num_heads=4, window=17),
        "local layer": lambda: layer(rows),
    }
    counts = {name: {"first": walked(call), "again": walked(call)} for name, call in calls.items()}
    with tempfile.TemporaryDirectory() as folder:
        return {"calls": counts, "modules": {name: loaded(words, folder) for name, words in COMMANDS.items()}}
