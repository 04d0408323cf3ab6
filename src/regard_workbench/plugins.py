"""Plugins: Python files of the user that register a model, a mechanism or a task: `regard --use my_file.py compare …`.

Loaded files are recorded, so that worker processes load them, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from regard.errors import BadValue

_LOADED: dict[str, None] = {}  # absolute paths, in the order in which they were loaded


def load(files: Iterable[str | Path]) -> None:
    """Execute each file once, as a module of its own; it can import modules from its folder."""
    for file in files:
        path = Path(file).absolute()
        if str(path) not in _LOADED:
            _run(path)
            _LOADED[str(path)] = None


def loaded() -> tuple[str, ...]:
    """The loaded files."""
    return tuple(_LOADED)


def _run(path: Path) -> None:
    if not path.is_file():
        raise BadValue(
            f"--use: there is no file {str(path)!r}. Expected a Python file that registers models, tasks or mechanisms."
        )
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
    except SystemExit as ended:  # a script, which would end this program as if it had succeeded
        del sys.modules[name]
        raise BadValue(
            f"--use: {path} ended the program (sys.exit({ended.code!r})) instead of only registering something. "
            'Put what is to run under `if __name__ == "__main__":`.'
        ) from None
    except Exception as trouble:  # any error of the file is reported with its location
        del sys.modules[name]
        last = traceback.extract_tb(trouble.__traceback__)[-1]
        location = f"{last.filename}, line {last.lineno}"
        raise BadValue(
            f"--use: {path} failed: {type(trouble).__name__}: {_first_line(trouble)} ({location})."
        ) from trouble


def _first_line(trouble: Exception) -> str:
    return next(iter(str(trouble).strip().splitlines()), "")[:300]
