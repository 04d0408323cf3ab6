"""Importing this module trains once, so that forked processes find every lazy import of torch done."""

import contextlib
import io
import tempfile

import torch

from regard.cli import train as verb  # noqa: F401
from regard.comparison import worker  # noqa: F401
from regard.training import Config, train
from tests.training import toy

toy.register()
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
    train(Config(task="toy", steps=1, accumulate=2, out=folder), tell=lambda text: None)
