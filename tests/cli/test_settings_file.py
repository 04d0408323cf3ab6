"""Files of settings: plain YAML of bounded size; aliases, repeated names and odd numbers are refused by line."""

import dataclasses
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import BadValue, RegardError
from regard_workbench.cli.main import main
from regard_workbench.training.config import Config, Optim, flat, from_yaml, make, plain_yaml, read, to_yaml

DOUBLING = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 27))
LISTS = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)


def kept(folder, text):
    path = folder / "settings.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DOUBLING, r"line 2, column 13: the alias \*a0"),
        (LISTS + "steps: *a8\n", r"the alias \*a0"),
        ("task: &t dates\nname: *t\n", r"line 2, column 7: the alias \*t"),
        ("a: " + "[" * 5000, "nested more than 16"),
        ("a: " + "{b: " * 5000, "nested more than 16"),
        ("- " * 5000 + "x", "nested more than 16"),
        ("? " * 5000 + "x", "nested more than 16"),
        ("x: [" + "1," * 30_000 + "1]", "more than 20,000 values"),
        ("task: dates\nsteps: 3\ntask: copy\n", r"line 3, column 1: 'task' is given twice"),
        ("optim: {lr: 1, lr: 2}", "'lr' is given twice"),
        ("optim: {lr: 0.1}\noptim.lr: 0.2", "optim.lr twice"),
        ("batch-size: 3\nbatch_size: 4", "batch_size twice, as batch-size and batch_size"),
        ("<<: {task: dates}", "write out each setting"),
        ("steps: .inf", "finite"),
        ("steps: .nan", "finite"),
        ("steps: 1.0e+999", "finite"),
        ("steps: 99999999999999999999", "63 bits"),
        ("steps: -99999999999999999999", "63 bits"),
        ("steps: 0x" + "f" * 40, "63 bits"),
        ("steps: " + "9" * 5000, "is not of type int"),
        ("!!bool ", "'' is not of type bool"),  # from here on, what fuzzing found
        ("steps: !!int x", "'x' is not of type int"),
        ("steps: !!int [1]", "expected a scalar node"),
        ("steps: !!float", "'' is not of type float"),
        ("steps: !!binary aGk=", "type 'binary'"),
        ("steps: !!set {a, b}", "type 'set'"),
        ("steps: !!python/object/apply:os.system [ls]", "python/object"),
        ("steps: !own x", "type '!own'"),
        ("? [a, b]\n: 1", "name of a setting"),
        ("[1, 2]", "got list"),
        ("just words", "got str"),
        (b"task: \xff", "not UTF-8"),
        ("task: \x1b", "not a YAML file"),
        ("a: b: c", "not a YAML file"),
        ("task: dates\n---\ntask: copy", "not a YAML file"),
        ("# " + "x" * 300_000, "at most 262,144 bytes"),
    ],
)
def test_a_settings_file_that_is_no_regular_file_is_refused_in_one_line(tmp_path, text, words):
    path, begun = kept(tmp_path, text), time.monotonic()
    with pytest.raises(BadValue, match=words) as caught:
        from_yaml(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert time.monotonic() - begun < 30  # it ends; unbounded, the first ones take hours


@pytest.mark.parametrize("bomb", [DOUBLING, LISTS + "steps: *a8\n"])
def test_the_command_refuses_a_file_that_unfolds_without_end(tmp_path, bomb, capsys):
    assert main(["train", "--config", str(kept(tmp_path, bomb)), "--dry-run"]) == 2
    assert "alias" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("\ufefftask: dates\n", {"task": "dates"}),
        ("name: 2024-05-01\n", {"name": "2024-05-01"}),
        ("name: 2024-99-99\n", {"name": "2024-99-99"}),
        (
            "optim: {lr: 3e-4, betas: [0.9, 0.98]}\ncompile: true\nclip: ~\n",
            {"optim": {"lr": "3e-4", "betas": [0.9, 0.98]}, "compile": True, "clip": None},
        ),
        ("seed: 9223372036854775807", {"seed": 2**63 - 1}),
        ("anchor: &unused 3", {"anchor": 3}),
    ],
)
def test_plain_settings_are_read_as_they_are_written(tmp_path, text, found):
    assert from_yaml(kept(tmp_path, text)) == found


@pytest.mark.parametrize("value", [2**63, "1e30", 10**400, "9" * 400, -1, 0.5, float("nan"), "²", "٣³", True])
def test_a_whole_number_out_of_range_is_refused(value):
    clean, mistakes = read({"steps": value})
    assert not clean and len(mistakes) == 1 and mistakes[0].startswith("steps: expected a whole number")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(lambda t: t.strip())
CONFIGS = st.builds(
    Config,
    task=TEXTS,
    name=st.none() | TEXTS.filter(lambda t: t != "null"),
    data=st.lists(TEXTS, max_size=3).map(tuple),
    steps=st.none() | st.integers(0, 2**63 - 1),
    seed=st.integers(0, 2**63 - 1),
    compile=st.booleans(),
    optim=st.builds(Optim, lr=st.none() | st.floats(0, 1e300), weight_decay=st.floats(0, 1e3)),
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(config=CONFIGS)
def test_every_setting_that_is_written_is_read_back_as_it_was(config):
    assert plain_yaml.load(to_yaml(config))["task"] == config.task
    found = flat(plain_yaml.load(to_yaml(config)))
    written = flat(dataclasses.asdict(config))
    assert {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()} == written


# Pieces of YAML's own grammar, so that most texts get past the first letter.
PIECES = st.sampled_from(
    [
        "task",
        "steps",
        "optim",
        "lr",
        ": ",
        ":",
        "\n",
        "  ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "!!int ",
        "!!str ",
        "!!float ",
        "!!timestamp ",
        "!!null ",
        "!x ",
        "<<",
        "1",
        "0x1f",
        "1e3",
        ".inf",
        "-.5",
        "1:30",
        "0b11",
        "2001-01-01",
        "~",
        "yes",
        '"',
        "'",
        "|",
        ">",
        "%YAML 1.1\n",
        "---\n",
        "...\n",
        "#",
        "\t",
        "\\",
        "\u2028",
        "é",
        "\0",
        "_",
        "0o7",
        "1_0",
        "!!bool ",
        "@",
        "`",
        "\r",
    ]
)
YAMLS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60)


def read_or_refused(folder, text):
    path = kept(folder, text)
    try:
        values = from_yaml(path)
    except RegardError as refusal:
        assert "\n" not in str(refusal)
        return
    clean, _ = read(values)
    make({"task": "dates", **clean})


@settings(max_examples=150, deadline=None)
@given(text=YAMLS)
def test_any_text_is_settings_or_refused_in_one_line(tmp_path_factory, text):
    read_or_refused(tmp_path_factory.getbasetemp(), text)


@pytest.mark.nightly
@settings(max_examples=20_000, deadline=None)
@given(text=YAMLS)
def test_many_texts_are_settings_or_refused_in_one_line(tmp_path_factory, text):
    read_or_refused(tmp_path_factory.getbasetemp(), text)


@settings(max_examples=60, deadline=None)
@given(text=YAMLS)
def test_values_are_read_as_the_library_reads_them(text):
    """Stricter, never different: PyYAML's own safe loader finds the same, but for dates, which stay texts."""
    try:
        found = plain_yaml.load(text)
    except yaml.YAMLError:
        return
    expected = yaml.safe_load(text)
    assert repr(found) == repr(expected) or "-" in text
