"""Where results are printed: a rich console that suits a terminal, a pipe and a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType

WIDEST = 120  # longer lines are hard to read


def console(width: int | None = None) -> Console:
    """A console of the given width, else of the terminal's or 80 columns, at most `WIDEST`; no colours in a pipe."""
    default = Console(highlight=False, markup=False, emoji=False)
    return Console(width=width or min(default.width, WIDEST), highlight=False, markup=False, emoji=False)


def put(out: Console, *parts: RenderableType) -> None:
    """Print the parts; in a file or a pipe, lines have no trailing spaces."""
    with out.capture() as captured:
        for renderable in parts:
            out.print(renderable)
    text = captured.get()
    if not out.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    out.file.write(text)


@contextmanager
def progress(work: str) -> Iterator[Callable[[int, int], None]]:
    """A function of what is done and the total, which moves a progress bar on stderr, if that is a terminal."""
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(work, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
