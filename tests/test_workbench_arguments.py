"""Every argument of every function of the workbench: in each form that it takes, and refused by its name in others."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import regard
from regard.errors import BadType

A, B = Path("a"), Path("b")
TRAINED = SimpleNamespace(folder=Path("trained"))

# Kinds of arguments: what is given → what is received; and what is refused.
TEXT = {"takes": [("a", "a")], "refuses": [3, A, ["a"], b"a"]}
PATH = {"takes": [("a", "a"), (A, "a")], "refuses": [3, ["a"], b"a"]}
RUN = {"takes": [("a", "a"), (A, "a"), (TRAINED, "trained")], "refuses": [None, 3, ["a"], b"a"]}
RUNS = {
    "takes": [
        ("runs/b", ["runs/b"]),
        (A, ["a"]),
        (TRAINED, ["trained"]),
        (["a", B, TRAINED], ["a", "b", "trained"]),
        ((A,), ["a"]),
        ((), []),
        (None, []),
    ],
    "refuses": [3, ["a", 3], b"a"],
}
FILES = {
    "takes": [("a", "a"), ("a,b", "a,b"), (A, "a"), (["a", B], "a,b"), ((A,), "a"), ([], None), (None, None)],
    "refuses": [3, [3], b"a", {"a": 1}],
}
PLUGINS = {
    "takes": [("abc.py", ["abc.py"]), (A, ["a"]), (["a", B], ["a", "b"]), ((), []), (None, [])],
    "refuses": [3, [3], b"a"],
}
NAMES = {"takes": [("a,b", "a,b"), (["a", "b"], ["a", "b"]), (None, None)], "refuses": [3, [3], A, [A]]}
WORDS = {"takes": [(["a", "b"], ["a", "b"]), (None, None)], "refuses": ["ab", 3, [3]]}
WHOLE = {"takes": [(3, 3)], "refuses": ["3", 2.5, True, [3]]}
NUMBER = {"takes": [(0.5, 0.5), (3, 3)], "refuses": ["0.5", True, [0.5]]}
NUMBERS = {"takes": [(0.5, (0.5,)), ([0.5, 3], (0.5, 3)), (None, None)], "refuses": ["0.5", True, ["0.5"]]}
COUNTS = {"takes": [(3, (3,)), ([3, 5], (3, 5)), (None, None)], "refuses": ["35", 2.5, True, [2.5]]}
SEEDS = {"takes": [(3, 3), ("3,5", "3,5"), ([3, 5], [3, 5])], "refuses": [None, 2.5, True, ["3"]]}
TARGET = {"takes": [(0.5, 0.5), ("95%", "95%"), (None, None)], "refuses": [True, [0.5]]}
FLAG = {"takes": [(True, True), (False, False)], "refuses": [None, 1, "yes"]}
DEVICE = {"takes": [("cpu", "cpu"), (torch.device("cpu"), "cpu")], "refuses": [3, A, ["cpu"]]}


def optional(kind):
    return {"takes": [*kind["takes"], (None, None)], "refuses": kind["refuses"]}


def names(kind, *arguments):
    return dict.fromkeys(arguments, kind)


VERBS = {
    "train": {
        **names(optional(TEXT), "task", "model", "attention", "budget", "precision"),
        "data": FILES,
        "use": PLUGINS,
        **names(optional(WHOLE), "steps", "seed"),
        **names(optional(PATH), "out", "resume"),
        "device": optional(DEVICE),
        "quiet": FLAG,
    },
    "evaluate": {
        "run": RUN,
        "split": TEXT,
        "checkpoint": optional(TEXT),
        "data": FILES,
        "device": DEVICE,
        **names(optional(WHOLE), "batch_size", "beam", "limit"),
        "length_penalty": optional(NUMBER),
    },
    "export": {"run": RUN, "to": TEXT, "out": optional(PATH), "checkpoint": optional(TEXT), "data": FILES},
    "compare": {
        **names(optional(TEXT), "task", "budget", "match"),
        **names(NAMES, "models", "attention", "columns"),
        "data": FILES,
        "seeds": SEEDS,
        **names(optional(WHOLE), "steps", "workers", "beam"),
        "sweep": WHOLE,
        "out": optional(PATH),
        "engine": TEXT,
        "target": TARGET,
        "use": PLUGINS,
        "quiet": FLAG,
    },
    "view": {
        "what": RUN,
        **names(optional(TEXT), "text", "target", "checkpoint"),
        **names(optional(PATH), "image", "sound", "table", "against"),
        **names(optional(WHOLE), "example", "generate"),
        "beams": WHOLE,
        **names(FLAG, "checkpoints", "importance"),
        "device": DEVICE,
        "tokens": WORDS,
    },
    "attack": {
        "run": RUN,
        **names(optional(TEXT), "method", "norm", "start", "checkpoint"),
        "eps": NUMBERS,
        "words": COUNTS,
        **names(optional(WHOLE), "steps", "restarts", "places", "nearest", "batch_size", "limit"),
        "seed": WHOLE,
        **names(optional(NUMBER), "step_size", "cosine"),
        "against": RUNS,
        "split": TEXT,
        "data": FILES,
        "device": DEVICE,
    },
}
FIRST = {"evaluate": "run", "export": "run", "view": "what", "attack": "run"}
CASES = [(verb, name) for verb, arguments in VERBS.items() for name in arguments]


@pytest.fixture
def received(monkeypatch):
    """Calls a function of the workbench and gives, by name, what reaches the room that does the work."""
    calls = {}

    def note(**given):
        calls.update(given)
        return SimpleNamespace(folder=Path("done"), page_sites=[], title="")

    def plugins(files):
        calls["use"] = [str(file) for file in files]

    for place, stub in {
        "regard_workbench.plugins.load": plugins,
        "regard_workbench.training.run.train": lambda settings, resume, quiet: note(
            **settings, resume=resume, quiet=quiet
        ),
        "regard_workbench.figures.run_curves.draw_run": lambda folder: None,
        "regard_workbench.comparison.evaluate.evaluate_run": lambda run, split, **more: note(
            run=run, split=split, **more
        ),
        "regard_workbench.training.exporting.export.export_run": lambda run, to, out, **more: note(
            run=run, to=to, out=out, **more
        ),
        "regard_workbench.comparison.plan.make_plan": lambda settings, **more: note(**settings, **more),
        "regard_workbench.comparison.compare.compare": lambda plan, *display: note(quiet=not display),
        "regard_workbench.viewer.opening.open_page": lambda options: note(**{**vars(options), "what": options.where}),
        "regard_workbench.viewer.page_model.page_model_of": lambda seen, tokens: note(tokens=tokens),
        "regard_workbench.attacks.attack.attack_runs": lambda runs, settings, split, **more: note(
            run=runs[0], against=[str(run) for run in runs[1:]], split=split, **vars(settings), **more
        ),
    }.items():
        monkeypatch.setattr(place, stub)

    def call(verb, name, given):
        calls.clear()
        positional = [] if verb not in FIRST or FIRST[verb] == name else ["somewhere"]
        companions = {"beams": {"generate": 5}}.get(name, {})
        if (verb, name) == ("view", "tokens") and given is not None:
            positional = [observed()]
        getattr(regard, verb)(*positional, **{name: given}, **companions)
        return calls.get(name)

    return call


def observed():
    layer = regard.nn.build("causal", dim=6, num_heads=2)
    with regard.observe(layer) as seen:
        layer(torch.randn(1, 3, 6))
    return seen


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_has_every_argument(verb):
    arguments = inspect.signature(getattr(regard, verb)).parameters
    assert set(VERBS[verb]) == {name for name, one in arguments.items() if one.kind is not one.VAR_KEYWORD}


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_each_form_of_an_argument_arrives(verb, name, received):
    for given, expected in VERBS[verb][name]["takes"]:
        found = received(verb, name, given)
        assert (str(found) if isinstance(found, (Path, torch.device)) else found) == expected, given


@pytest.mark.parametrize(("verb", "name"), CASES)
def test_another_type_is_refused_by_the_name_of_the_argument(verb, name, received):
    for given in [*VERBS[verb][name]["refuses"], object()]:
        with pytest.raises(BadType, match=f"^{name}: expected .*, got "):
            received(verb, name, given)


def test_paths_and_devices_among_further_settings_are_text(received):
    assert received("train", "init_from", A) == "a"
    assert received("compare", "init_from", A) == "a"
    assert received("compare", "device", torch.device("cpu")) == "cpu"
    assert received("train", "optim", {"lr": 0.5}) is None and received("train", "optim.lr", 0.5) == 0.5


OBSERVE = {
    "model": {"takes": ["a", A, torch.nn.Linear(2, 3), None], "refuses": [3, ["a"], torch.nn.Linear]},
    "device": {"takes": ["cpu", torch.device("cpu"), None], "refuses": [3, A, ["cpu"]]},
    "dtype": {"takes": [torch.float16, None], "refuses": ["float16", 3, torch.int32]},
    "copy": {"takes": [True, False], "refuses": [None, 1, "yes"]},
    "calls": {"takes": [3, None], "refuses": ["3", 2.5, True, [3]]},
    "gradients": {"takes": [True, False], "refuses": [None, 1, "yes"]},
}


@pytest.mark.parametrize("name", OBSERVE)
def test_observe_takes_each_form_of_its_arguments_and_refuses_others(name, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "regard_workbench.viewer.opening.pretrained.open_named",
        lambda where: opened.append(where) or torch.nn.Linear(2, 3),
    )
    assert set(OBSERVE) == set(inspect.signature(regard.observe).parameters)
    for given in OBSERVE[name]["takes"]:
        assert callable(regard.observe(**{name: given}).__enter__)
    assert opened == (["a", "a"] if name == "model" else [])
    for given in OBSERVE[name]["refuses"]:
        with pytest.raises(BadType, match=f"^{name}: expected .*, got "):
            regard.observe(**{name: given})
