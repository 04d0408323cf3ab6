"""Serves page models: `python -m tests.browser.serving` reads names, one a line, and prints their URLs.

A page model is built on request, so that one process, with one import of torch, serves all tests. One that cannot be
built is answered by its error and fails only the tests that ask for it. The process ends when its standard input is
closed, so that nothing lingers when whoever started it is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TROUBLE = "trouble "  # before a traceback in JSON, instead of a URL


class Stages:
    """The page models of `page_models.py` by name, in their own process."""

    def __init__(self, process: Running) -> None:
        self.process = process
        self.known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """The URL of a page model."""
        if name not in self.known:
            self.known[name] = self.anew(name)
        return self.known[name]

    def anew(self, name: str) -> str:
        """Another URL of the same server, for another browser."""
        answer = self.process.ask(name)
        if answer.startswith(TROUBLE):
            raise RuntimeError(json.loads(answer.removeprefix(TROUBLE)))
        return answer


@contextmanager
def served() -> Iterator[Stages]:
    """All page models, built on request."""
    with running([sys.executable, "-m", "tests.browser.serving"]) as process:
        yield Stages(process)


@contextmanager
def viewed(*arguments: str) -> Iterator[str]:
    """`regard view …` as a user would start it; the address it prints."""
    command = [sys.executable, "-m", "regard", "view", *arguments, "--no-browser", "--port", "0", "--json"]
    with running(command) as process:
        yield json.loads(process.line())["url"]


class Running:
    """A process that is controlled by lines; its stderr is kept for error messages."""

    def __init__(self, command: list[str]) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
        self.complaints: list[str] = []
        self.reader = threading.Thread(target=lambda: self.complaints.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def ask(self, words: str) -> str:
        """Send a line and return the answer."""
        print(words, file=self.process.stdin, flush=True)
        return self.line().strip()

    def line(self) -> str:
        """The next line; raises with the process's stderr if there is none."""
        found = self.process.stdout.readline()
        if not found:
            self.reader.join(5)
            raise RuntimeError(f"{' '.join(self.process.args)}:\n{''.join(self.complaints)[-4000:]}")
        return found

    def end(self) -> None:
        """Stop it, and leave no pipe open."""
        self.process.terminate()
        self.process.wait(10)
        self.reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@contextmanager
def running(command: list[str]) -> Iterator[Running]:
    """A process for the duration of the block."""
    process = Running(command)
    try:
        yield process
    finally:
        process.end()


def main() -> None:
    """Build the requested page models, serve them and print their URLs."""
    from regard_workbench.viewer.server import Server
    from tests.browser import page_models

    answers, sys.stdout = sys.stdout, sys.stderr  # only URLs go to stdout
    servers: dict[str, Server] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in servers:
                servers[name] = Server(getattr(page_models, name)())
                threading.Thread(target=servers[name].run, daemon=True).start()
            answer = servers[name].address()
        except Exception:
            answer = TROUBLE + json.dumps(traceback.format_exc())
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
