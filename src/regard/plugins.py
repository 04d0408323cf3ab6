"""Files of the user that register a model, a mechanism or a task: `regard --use my_file.py compare …`.

What is loaded is remembered, so that processes that work for this one can load it, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from regard.errors import BadValue

_LOADED: dict[str, None] = {}  # absolute paths, in the order they came


def load(files: Iterable[str | Path]) -> None:
    """Run each file once, as a module of its own; what stands beside it can be imported by it."""
    for file in files:
        path = Path(file).absolute()
        if str(path) not in _LOADED:
            _run(path)
            _LOADED[str(path)] = None


def loaded() -> tuple[str, ...]:
    """Every file that was loaded."""
    return tuple(_LOADED)


def _run(path: Path) -> None:
    if not path.is_file():
        raise BadValue(f"--use: there is no file {str(path)!r}. Pass a Python file that registers something.")
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadValue(f"--use: expected a Python file, got {str(path)!r}.")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by its name
    try:
        spec.loader.exec_module(module)
    except SystemExit as ended:  # a script that was written to be run, and would end us as if all were done
        del sys.modules[name]
        raise BadValue(
            f"--use: {path} ended the program (sys.exit({ended.code!r})) instead of only registering something. "
            'Put what is to run under `if __name__ == "__main__":`.'
        ) from None
    except Exception as trouble:  # whatever a stranger's file does wrong, the user must hear where
        del sys.modules[name]
        last = traceback.extract_tb(trouble.__traceback__)[-1]
        place = f"{last.filename}, line {last.lineno}"
        raise BadValue(
            f"--use: {path} failed: {type(trouble).__name__}: {_first_line(trouble)} ({place})."
        ) from trouble


def _first_line(trouble: Exception) -> str:
    return next(iter(str(trouble).strip().splitlines()), "")[:300]
