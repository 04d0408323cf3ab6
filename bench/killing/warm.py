"""Loading this does once what every trial does, so that processes forked afterwards find every lazy import done.

Not where there is a GPU: a backward pass starts threads for it, and a process that is forked after that can train on
nothing. Asking torch whether there is one would do the same.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import torch

from bench.killing import trial
from regard_workbench.comparison.job import Contestant, Job
from regard_workbench.comparison.worker import perform

torch.set_num_threads(1)
if not Path("/dev/nvidiactl").exists():
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        text, run = Path(folder) / "text.txt", Path(folder) / "run"
        text.write_text(trial.TEXT)
        perform(Job(Contestant(trial.MODEL), trial.SEED, trial.settings(text, steps=2), str(run)))
        trial.readers(run)
