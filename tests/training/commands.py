"""Real processes that train and can be killed, forked from a server with everything imported, to start fast."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.training.preload"])


def _work(arguments, log, entry, environment, slow, largest_file, die_at, ignore, terminal):
    if terminal:
        os.setsid()  # a new session, so that the terminal opened next becomes its controlling terminal
        handle = os.open(terminal, os.O_RDWR)
    else:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update({"REGARD_TOY_SLOW": str(slow), **environment})
    import torch

    from regard_workbench.cli.main import main
    from tests.training import toy

    toy.register()
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if ignore:
        signal.signal(ignore, signal.SIG_IGN)
    if largest_file:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if die_at:
        _die_at(die_at)
    sys.exit((entry or main)(arguments))


def _die_at(number):
    """Exit, as a kill would, in the n-th file-system call, with a write half done."""
    calls = 0
    for name in ("open", "write", "fsync", "rename", "replace"):

        def counted(*arguments, name=name, real=getattr(os, name), **options):
            nonlocal calls
            calls += arguments[0] not in (1, 2)
            if calls == number:
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os._exit(9)
            return real(*arguments, **options)

        setattr(os, name, counted)


class Command:
    """`regard …` in a process of its own. `entry` replaces the command line by another function of the arguments."""

    def __init__(
        self,
        folder,
        *arguments,
        entry=None,
        environment=None,
        slow=0.0,
        largest_file=0,
        die_at=0,
        ignore=0,
        terminal="",
    ):
        self.log = folder / "log.txt"
        process = (list(map(str, arguments)), str(self.log), entry, environment or {})
        self.process = context.Process(target=_work, args=(*process, slow, largest_file, die_at, ignore, terminal))
        self.process.start()

    def wait(self):
        """Its exit code, negative for a signal."""
        self.process.join(300)
        assert self.process.exitcode is not None, self.text
        return self.process.exitcode

    def send(self, number):
        """Send a signal, unless the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    @property
    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, path, lines=1):
        """Wait until a file has at least `lines` lines."""
        limit = time.monotonic() + 300
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert self.process.is_alive() and time.monotonic() < limit, self.text
            time.sleep(0.002)


def lives(number):
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition, seconds=300):
    """Wait until a condition is true, and return its value."""
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "the condition never became true"
        time.sleep(0.01)
    return found
