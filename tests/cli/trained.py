"""Runs that were trained for a moment, once for all tests of `evaluate` and `predict`."""

import json

import torch

from regard_workbench.cli.main import main
from regard_workbench.tasks import Batch
from regard_workbench.training import train

TEXT = "The sea was calm. A small boat came in. Nobody knew why it came! The old man waited for it.\n"

RUNS = {
    "dates": {"task": "dates(validation_size=5, test_size=13)", "model": "seq2seq(dim=16)", "steps": 3},
    "dates-transformer": {
        "task": "dates(validation_size=5, test_size=7)",
        "model": "transformer(dim=16, layers=2, num_heads=2)",
        "steps": 1,
    },
    "dates-blind": {
        "task": "dates(validation_size=5, test_size=7)",
        "model": "transformer(dim=16, layers=1, num_heads=2, cross=linear)",
        "steps": 1,
    },
    "translate": {"task": "translate(bleu_examples=3)", "model": "seq2seq(dim=8)", "steps": 1},
    "language": {"task": "language(context=23)", "model": "decoder(dim=16, layers=1, num_heads=2)", "steps": 3},
    "masked": {"task": "language(context=23)", "model": "encoder(dim=16, layers=1, num_heads=2)", "steps": 1},
    "segments": {
        "task": "language(context=23)",
        "model": "transformer-xl(dim=16, layers=1, num_heads=2, segment=8, memory=8)",
        "steps": 1,
    },
    "classify": {"task": "classify", "model": "lstm-attention(dim=16)", "steps": 1},
    "classify-encoder": {"task": "classify", "model": "encoder(dim=16, layers=2, num_heads=2)", "steps": 1},
    "classify-static": {"task": "classify", "model": "static-transformer(dim=16, layers=1, num_heads=2)", "steps": 1},
    "copy": {"task": "copy(max_length=3)", "model": "ntm(slots=8, width=4, hidden=8)", "steps": 1},
    "digits": {"task": "digits", "model": "encoder(dim=16, layers=1, num_heads=2)", "steps": 1},
}


class Trained:
    """Folders by name, one of `RUNS` or a task in its default form; a run is trained when it is first asked for."""

    def __init__(self, home):
        self.home = home

    def __getitem__(self, name):
        folder = self.home / name
        if not folder.exists():
            text = self.home / "book.txt"
            if not text.exists():
                text.write_text(TEXT * 40)
            own = RUNS.get(name, {"task": name, "steps": 1})
            settings = {**own, "out": str(folder), "device": "cpu", "batch_size": 4, "eval_limit": 4}
            if settings["task"].startswith("language"):
                settings["data"] = str(text)
            with torch.enable_grad():  # a test may ask for a run while it computes without gradients
                train(settings, tell=lambda text: None)
        return folder


def called(capsys, *arguments):
    """Exit code, stdout and stderr of a command."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def answered(capsys, *arguments):
    """What a command that succeeds prints as JSON."""
    code, out, err = called(capsys, *arguments, "--device", "cpu", "--json")
    assert code == 0, err
    return json.loads(out)


def written_by_hand(model, inputs):
    """The likeliest token at each step, each prefix read as a whole."""
    tokens = []
    while len(tokens) < model.answer.length:
        targets = torch.tensor([[*tokens, 0]])
        tokens.append(int(model(Batch.of(inputs, targets=targets))[0, -1].argmax()))
        if tokens[-1] == model.answer.end:
            break
    return tokens
