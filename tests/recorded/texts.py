"""What the command line prints: help, lists, pages of every name, and its answers to mistakes."""

import contextlib
import io
import os
import tempfile

import regard
from regard_workbench.cli.main import main

MISTAKES = """
train nosuch
train dates --model nosuch
train dates --steps -1
train dates --steps many
train dates --batch-size 0
train dates --optim.lr fast
train dates --optim.nosuch 1
train dates --attention nosuch
train dates --data nosuch.csv
train dates --device nosuch
train dates --precision 3-bit
train dates --out
train dates(nosuch=1)
train
train --modle decoder dates
train language --model seq2seq
train dates --model transformer(dim=7,num_heads=2)
train dates --model transformer(layers=0)
train dates --seed x
compare nosuch
compare digits --models nosuch
compare digits --seeds 0
compare digits --models encoder,nosuch
evaluate nosuch
evaluate
predict nosuch --text a
view nosuch
attack nosuch
bench --only nosuch
show nosuch
show
list nosuch
export nosuch --to onnx
chat nosuch
cache --clean nosuch
nosuch
--nosuch
train dates --config nosuch.yaml
train series --data nosuch.csv
train series(horizon=0)
train copy(min_length=9,max_length=3)
train graph --data nosuch.npz
train tag(scheme=nosuch)
""".strip().splitlines()


def printed(*words: str) -> list[object]:
    """Exit code, standard output and standard error of a command, without what names the folder it ran in."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    here = os.getcwd()
    return [code, *(stream.getvalue().replace(here, ".") for stream in (out, err))]


def record() -> dict[str, object]:
    """The section `texts`."""
    os.environ.update(COLUMNS="100", NO_COLOR="1", TERM="dumb")
    names = [*regard.nn.names(), *regard.models.names(), *regard.tasks.names()]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        verbs = sorted(line.split()[0] for line in printed("--help")[1].splitlines() if line.startswith("    "))
        return {
            "help": {verb: printed(verb, "--help") for verb in verbs if verb.isalpha()},
            "list": {kind: printed("list", *kind.split()) for kind in ("", "mechanisms", "models", "tasks")},
            "bench": printed("bench", "--list"),
            "show": {name: printed("show", name) for name in sorted(set(names))},
            "mistakes": {mistake: printed(*mistake.split()) for mistake in MISTAKES},
        }
