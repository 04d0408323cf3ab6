"""`subprocess.Popen` whose workers of a comparison are forked by a server that has imported everything.

A new interpreter needs three seconds for its imports. In `test_compare.py` a command starts real ones, as for users.
"""

import fcntl
import os
import subprocess
import sys
from multiprocessing import reduction

from bench import forked
from tests.training.commands import context, until

WORKER = [sys.executable, "-m", "regard_workbench.comparison.worker"]
_HIGH = 100  # above every file that a server or a worker has open


class Popen(subprocess.Popen):
    """The real one for everything but a worker."""

    def __new__(cls, command, *arguments, **options):
        if cls is Popen and list(command[:3]) == WORKER:
            return Worker(command, **options)
        return super().__new__(cls)


class Worker:
    """What the engine uses of a `subprocess.Popen`."""

    def __init__(self, command, *, stdin, stdout, stderr, start_new_session, pass_fds, env):
        assert stdin == subprocess.PIPE and start_new_session
        theirs, ours = os.pipe()
        files = Files({0: theirs, 1: stdout.fileno(), 2: stderr.fileno(), **{n: n for n in pass_fds}})
        arguments = (list(command), files, tuple(pass_fds), dict(env), os.getcwd())
        self._process = context.Process(target=_work, args=arguments)
        self._process.start()
        os.close(theirs)
        self.stdin = os.fdopen(ours, "wb")
        self.pid, self.args = self._process.pid, command
        until(self._has_a_session)  # as after a real Popen: whoever kills the group finds one

    def _has_a_session(self):
        try:
            return os.getsid(self.pid) == self.pid
        except ProcessLookupError:
            return True  # it has ended

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


class Files:
    """Open files by the number that they get in the other process."""

    def __init__(self, numbers):
        self.numbers = numbers

    def __getstate__(self):
        return {theirs: reduction.DupFd(ours) for theirs, ours in self.numbers.items()}

    def __setstate__(self, state):
        self.numbers = {theirs: sent.detach() for theirs, sent in state.items()}

    def put(self):
        """Give each its number, without closing one that is still to be moved."""
        moved = {theirs: fcntl.fcntl(ours, fcntl.F_DUPFD, _HIGH) for theirs, ours in self.numbers.items()}
        for theirs, ours in moved.items():
            os.dup2(ours, theirs)


def _work(command, files, kept, env, folder):
    files.put()
    os.chdir(folder)
    forked.execute(command, (0, 1, 2), kept, env)
