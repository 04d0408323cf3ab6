"""Loading this does once what every trial does, so that processes forked afterwards find every lazy import done."""

import contextlib
import io
import tempfile
from pathlib import Path

import torch
from benchmarks.killing import trial

from regard.comparison.job import Contestant, Job
from regard.comparison.worker import perform

torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    text, run = Path(folder) / "text.txt", Path(folder) / "run"
    text.write_text(trial.TEXT)
    with contextlib.redirect_stderr(io.StringIO()):
        perform(Job(Contestant(trial.MODEL), trial.SEED, trial.settings(text, steps=2), str(run)))
        trial.readers(run)
