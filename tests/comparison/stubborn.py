"""A program in place of the worker's Python: it behaves as the name of the run's folder says, and starts at once.

`… -m regard_workbench.comparison.worker FOLDER/job.json`. It writes its process id, and that of a child, beside
job.json.
"""

import os
import signal
import sys
from pathlib import Path

from tests.training.commands import context

PROGRAM = f"""#!{sys.executable} -IS
# The supervisor is started with the same Python as a worker; it must remain the real one.
import os, signal, subprocess, sys, time
if any(word.endswith("supervisor.py") for word in sys.argv):
    os.execv({sys.executable!r}, [{sys.executable!r}, "-IS", *sys.argv[-2:]])
folder = os.path.dirname(sys.argv[-1])
what = os.path.basename(folder)
if what.startswith("fails"):
    sys.exit("trouble")
if what.startswith("quits"):
    os._exit(0)
if what.startswith("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen(["sleep", "1000"])
with open(folder + "/part", "w") as file:
    file.write(f"{{os.getpid()}} {{other.pid}}")
os.rename(folder + "/part", folder + "/numbers")
if what.startswith("leaves"):
    os._exit(1)
while True:
    time.sleep(100)
"""


def program(folder):
    """Write the program into a folder, and return its path."""
    path = Path(folder) / "python"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return str(path)


def numbers(folder):
    """The process ids of the two processes of a run; empty before they have started."""
    try:
        return [int(number) for number in (Path(folder) / "numbers").read_text().split()]
    except FileNotFoundError:
        return []


def _engine(jobs, executable, log, grace):
    """Run jobs, in a process that can be sent signals."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.executable = executable
    from regard_workbench.comparison.engines import local, supervisor
    from regard_workbench.comparison.engines.stopped import Stopped

    supervisor.GRACE = grace
    try:
        local.LocalEngine(len(jobs)).run(jobs, lambda event: print(event.news, file=sys.stderr, flush=True))
    except Stopped as stopped:
        os._exit(stopped.exit_code)


def engine(jobs, folder, grace=60.0):
    """A process that runs jobs, and its log."""
    log = Path(folder) / "log.txt"
    found = context.Process(target=_engine, args=(jobs, program(folder), str(log), grace))
    found.start()
    return found, log
