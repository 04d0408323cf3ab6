"""The options of verbs that load a trained run: which run, which of its checkpoints, and where it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard_workbench.cli.common.parser import Parser


def add_run(parser: Parser, *, huggingface: bool = False) -> None:
    """Declare RUN; `huggingface`: the folder of a Hugging Face model is taken, too."""
    run = "the folder of a run, or of one of its checkpoints"
    run_or_model = "the folder of a run, of one of its checkpoints, or of a Hugging Face model"
    parser.add_argument("run", metavar="RUN", type=str, help=run_or_model if huggingface else run)


def add_checkpoint(parser: Parser) -> None:
    """Declare --checkpoint."""
    checkpoint = "best (the default), last, or the name or step of one"
    parser.add_argument("--checkpoint", type=str, metavar="NAME", help=checkpoint)


def add_device(parser: Parser) -> None:
    """Declare --device."""
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, cuda:1, mps")
