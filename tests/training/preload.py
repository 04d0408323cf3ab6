"""Importing this module trains once, so that forked processes find every lazy import of torch done.

Not where there is a GPU: a backward pass starts threads for it, and a process that is forked after that can train on
nothing. Asking torch whether there is one would do the same.
"""

import contextlib
import io
import tempfile
from pathlib import Path

import torch

from regard_workbench.cli import train as verb  # noqa: F401
from regard_workbench.comparison import worker  # noqa: F401
from regard_workbench.training import Config, train
from tests.training import toy

toy.register()
torch.set_num_threads(1)
if not Path("/dev/nvidiactl").exists():
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        train(Config(task="toy", steps=1, accumulate=2, out=folder), tell=lambda text: None)
