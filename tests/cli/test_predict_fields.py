"""`regard predict` of the fields: examples of a task's own, neighbours of a node, two kinds of input, figures."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from regard import observe
from regard_workbench.tasks.pictures.written_digits import images
from regard_workbench.tasks.sound.recordings import load
from regard_workbench.training import load_run, train
from tests.cli.trained import called
from tests.tasks.sound.wav_bytes import whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs of a few steps."""
    home = tmp_path_factory.mktemp("fields")
    small = {"graph": "graph(dim=16)", "match": "co-attention(dim=8)", "series": "seq2seq(dim=8)"}
    for name, model in small.items():
        settings = {"task": name, "model": model, "steps": 3, "eval_limit": 8, "out": str(home / name), "device": "cpu"}
        train(settings, quiet=True)
    return home


def predicted(capsys, *arguments):
    code, out, err = called(capsys, "predict", *arguments, "--device", "cpu", "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    return found


def test_the_neighbours_of_a_node_are_printed_with_their_weights(folder, capsys):
    found = predicted(capsys, folder / "graph", "--text", "500")
    task, model, _ = load_run(folder / "graph", device="cpu")
    into = task.edges[0, task.edges[1] == 500].tolist()
    seen = {one["piece"].split()[0]: one["weight"] for one in found["looked_at"]["pieces"] if one["weight"] > 0}
    assert set(seen) == {"500", *map(str, into)} and sum(seen.values()) == pytest.approx(1, abs=1e-4)
    batch = task.collate([500], torch.Generator())
    with observe(model) as record, torch.no_grad():
        model(batch)
    row = record["layers.1"].weights()[0].mean(0)[0]  # the node itself comes first
    near = task.neighbourhood(500)[0].tolist()
    assert seen == pytest.approx({str(near[n]): float(row[n]) for n in row.nonzero().flatten().tolist()}, abs=1e-4)
    _, out, _ = called(capsys, "predict", folder / "graph", "--text", "500", "--device", "cpu")
    assert all(f"{node} (community" in out for node in into)


def test_an_example_of_the_task_is_predicted_as_the_model_answers(folder, capsys):
    for name in ("graph", "match", "series"):
        task, model, _ = load_run(folder / name, device="cpu")
        batch = task.collate([task.examples("test")[3]], torch.Generator())
        with torch.no_grad():
            (expected,) = model.predict(model(batch), batch)
        found = predicted(capsys, folder / name, "--example", "3")
        assert np.allclose(found["predicted"], expected, atol=1e-5) and found["words"]
    for verb in ("predict", "view"):
        code, _, err = called(capsys, verb, folder / "series", "--example", "99999", "--device", "cpu")
        assert code == 2 and "--example: expected a number from 0 to" in err


@pytest.mark.parametrize("name", ["match", "series"])
def test_view_and_predict_number_the_same_examples(folder, name, capsys, tmp_path):
    words = []
    for number in ("0", "5"):
        wanted = ("--example", number)
        code, out, err = called(
            capsys, "view", folder / name, *wanted, "--export", tmp_path / "page.html", "--device", "cpu", "--json"
        )
        assert code == 0, err
        words.append(predicted(capsys, folder / name, *wanted)["words"])
        assert words[-1] in json.loads(out)["words"]
    assert "" not in words and words[0] != words[1]


def test_digits_are_drawn_for_each_stream_or_read_from_files(folder, capsys, tmp_path):
    run = folder / "match"
    typed = predicted(capsys, run, "--text", "seven | 2 seven nine one 4")
    assert typed["attention"]["rows"] == ["1: two", "2: seven", "3: nine", "4: one", "5: four"]
    assert typed["output"].startswith(f"place {typed['predicted'] + 1}: ")
    sound = next(one for one in load(None, 8000)["test"] if one.transcript == "7")
    (tmp_path / "seven.wav").write_bytes(whole((sound.samples * 32767).astype(int).tolist()))
    pixels, digits = images()
    for digit in range(5):
        grey = (pixels[digits.index(digit)].reshape(8, 8) * 255).round().astype(np.uint8)
        Image.fromarray(grey).save(tmp_path / f"{digit}.png")
    files = [word for digit in range(5) for word in ("--image", tmp_path / f"{digit}.png")]
    found = predicted(capsys, run, "--sound", tmp_path / "seven.wav", *files)
    assert found["attention"]["rows"] == [f"{n + 1}: {n}.png" for n in range(5)]
    assert found["output"].endswith(".png")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--text", "seven"], 'expected the digits of sound and of image, separated by "|", got 1 parts'),
        (["--text", "seven | one two"], "expected 5 for the stream image, got 2"),
        (["--text", "sevn | 1 2 3 4 5"], "Did you mean 'seven'"),
        (["--table", "x.csv"], "--table: the task match reads"),
    ],
)
def test_what_is_missing_of_two_inputs_is_said(folder, given, words, capsys):
    code, _, err = called(capsys, "predict", folder / "match", *given, "--device", "cpu")
    assert code == 2 and words in err


@pytest.mark.parametrize(
    ("name", "given"),
    [("graph", ("--text", "500")), ("match", ("--text", "1 | 5 4 3 2 1")), ("series", ("--example", "0"))],
)
def test_every_prediction_is_drawn(folder, name, given, capsys, tmp_path):
    where = tmp_path / "figure.svg"
    predicted(capsys, folder / name, *given, "--figure", where)
    text = where.read_text()
    assert "<svg" in text and len(text) > 5000


def test_a_decoder_of_steps_shows_which_times_its_forecast_looked_back_at(folder, capsys, tmp_path):
    found = predicted(capsys, folder / "series", "--example", "0")
    weights = [one["weight"] for one in found["looked_at"]["pieces"]]
    assert len(weights) == 96 and sum(weights) == pytest.approx(1, abs=1e-3)
    where = tmp_path / "page.html"
    code, out, err = called(capsys, "view", folder / "series", "--export", where, "--device", "cpu", "--json")
    assert code == 0, err
    (site,) = json.loads(out)["sites"]
    assert (site["queries"] * site["calls"], site["keys"]) == (24, 96)
