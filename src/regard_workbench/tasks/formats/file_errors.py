"""The net under every reader of files: what it raises, whatever it is, is one line that names the file.

A reader says what it expected, with file and line. Below that lies what its author did not foresee: an error
of a library, a number that does not fit, memory that is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from regard.errors import BadValue, RegardError
from regard_workbench import files

LONGEST = 200  # characters of another library's message
Reader = TypeVar("Reader", bound=Callable[..., Any])


@contextmanager
def file_errors(path: str | Path | Sequence[str | Path] | None, argument: str = "data") -> Iterator[None]:
    """Inside, an error that is none of ours becomes a `BadValue` that names the argument and the file or files."""
    try:
        yield
    except RegardError:
        raise
    except MemoryError:
        raise BadValue(f"{argument}: {named(path)} does not fit into memory. Split it, or take a part of it.") from None
    except OSError as trouble:
        raise BadValue(f"{argument}: {named(path)} cannot be read: {trouble.strerror or trouble}.") from None
    except Exception as trouble:
        words = " ".join(str(trouble).split())[:LONGEST]
        why = f"{type(trouble).__name__}: {words}" if words else type(trouble).__name__
        raise BadValue(
            f"{argument}: {named(path)} cannot be read: {ascii(why)[1:-1]}. Is it complete, and in the form that is "
            "expected here?"
        ) from trouble


def reads_file(reader: Reader) -> Reader:
    """Put a function under the net. Its first argument is the file that it reads, or the files."""
    if inspect.isgeneratorfunction(reader):

        @wraps(reader)
        def guarded(path: Any, *rest: Any, **options: Any) -> Any:
            with file_errors(path):
                yield from reader(path, *rest, **options)

    else:

        @wraps(reader)
        def guarded(path: Any, *rest: Any, **options: Any) -> Any:
            with file_errors(path):
                return reader(path, *rest, **options)

    return cast(Reader, guarded)


def named(path: str | Path | Sequence[str | Path] | None) -> str:
    """A file, or some, for a message."""
    if path is None:
        return "the generated data"
    several = [path] if isinstance(path, (str, Path)) else list(path)
    return ", ".join(files.shown(file_path) for file_path in several[:3]) + (" …" if len(several) > 3 else "")
