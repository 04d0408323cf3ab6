"""Serves stages to a browser: `python -m tests.browser.serving NAME …` prints one line of JSON with their addresses.

It serves until its standard input is closed, so that nothing lingers when whoever started it is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served(*names: str) -> Iterator[dict[str, str]]:
    """Stages of `stages.py` by name, in a process of their own; the address of each."""
    with _process([sys.executable, "-m", "tests.browser.serving", *names]) as line:
        yield json.loads(line)


@contextmanager
def viewed(*arguments: str) -> Iterator[str]:
    """`regard view …` as a user would start it; the address it prints."""
    command = [sys.executable, "-m", "regard", "view", *arguments, "--no-browser", "--port", "0", "--json"]
    with _process(command) as line:
        yield json.loads(line)["url"]


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None and process.stdin is not None
    complaints: list[str] = []
    reader = threading.Thread(target=lambda: complaints.extend(process.stderr), daemon=True)
    reader.start()
    try:
        line = process.stdout.readline()
        if not line.startswith("{"):
            process.kill()
            reader.join(5)
            raise RuntimeError(
                f"{' '.join(command)}:\n{line}{process.stdout.read()}{''.join(complaints)[-4000:]}"
            )
        yield line
    finally:
        process.terminate()
        process.wait(10)
        reader.join(5)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def main(names: list[str]) -> None:
    """Build, serve, wait."""
    from regard.viewer.server import Server
    from tests.browser import stages

    chatter, sys.stdout = sys.stdout, sys.stderr  # only the addresses go to the standard output
    addresses = {}
    for name in names:
        server = Server(getattr(stages, name)())
        threading.Thread(target=server.run, daemon=True).start()
        addresses[name] = server.address
    print(json.dumps(addresses), file=chatter, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
