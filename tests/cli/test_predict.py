"""`regard predict` on runs trained for a moment: what is written, and the pictures of where a model looked."""

import io
import json
from pathlib import Path

import numpy
import pytest
import torch
import yaml
from PIL import Image

from regard_workbench.cli.predict import picture
from regard_workbench.tasks import Batch
from regard_workbench.training import load_run
from tests.cli.trained import answered, called, written_by_hand


def predicted(capsys, *arguments):
    return answered(capsys, "predict", *arguments)


@torch.no_grad()
def test_a_date_is_written_with_its_alignment(runs, capsys):
    text = "3rd of May, 1979"
    (found,) = predicted(capsys, runs["dates"], "--text", text)
    task, model, _ = load_run(runs["dates"])
    inputs = torch.tensor([task.encode(text).source])
    tokens = written_by_hand(model, inputs)
    assert found["tokens"] == tokens and found["output"] == task.decode(tokens)
    seen = found["alignment"]
    assert seen["columns"] == list(text)
    weights = model.alignments(Batch.of(inputs, targets=torch.tensor([tokens])))[0]
    rows = len(tokens) - (tokens[-1] == model.answer.end)
    assert seen["rows"] == task.output_pieces(tokens[:rows])
    torch.testing.assert_close(torch.tensor(seen["weights"]), weights[:rows], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_alignment_of_a_transformer_is_its_last_cross_attention(runs, capsys):
    (found,) = predicted(capsys, runs["dates-transformer"], "--text", "May 3 1979", "--beam", 3)
    task, model, _ = load_run(runs["dates-transformer"])
    source = model.read(Batch.of(torch.tensor([task.encode("May 3 1979").source])))
    tokens = [model.answer.start, *found["tokens"][:-1]]
    rows = model.target_embedding(torch.tensor([tokens]))
    first, last = model.decoder.layers
    rows = first(rows, source)
    rows = last.around_attention(rows, last.attention)
    weights = last.cross.weights(last.around_cross.norm(rows), source).mean(1)[0]
    shown = torch.tensor(found["alignment"]["weights"])
    torch.testing.assert_close(shown, weights[: len(shown)], atol=1e-4, rtol=1e-4)


def test_a_model_without_weights_says_that_it_has_no_alignment(runs, capsys):
    code, out, _ = called(capsys, "predict", runs["dates-blind"], "--text", "May 3 1979")
    assert code == 0 and "May 3 1979  →  " in out
    assert "transformer has no alignment: linear" in out


def test_the_data_a_run_learned_from_may_be_gone(runs, capsys):
    folder = runs["language"]
    (book,) = yaml.safe_load((folder / "config.yaml").read_text())["data"]
    Path(book).rename(f"{book}.elsewhere")
    try:
        (found,) = predicted(capsys, folder, "--text", "The sea", "--max-length", 3)
        assert len(found["tokens"]) == 3
        code, _, err = called(capsys, "evaluate", folder)
        assert code == 2 and Path(book).name in err
    finally:
        Path(f"{book}.elsewhere").rename(book)


def test_an_alignment_is_drawn_in_the_terminal(runs, capsys):
    code, out, _ = called(capsys, "predict", runs["dates"], "--text", "3rd of May, 1979")
    lines = out.splitlines()
    assert code == 0 and "\x1b" not in out and lines[0].startswith("3rd of May, 1979  →  ")
    head = next(line for line in lines if "3 r d   o f   M a y ,   1 9 7 9" in line)
    frame = next(line for line in lines if "┌" in line)
    assert frame.index("┌") + 1 == head.index("3") and frame.count("──") == len("3rd of May, 1979")


def test_a_completion_is_the_likeliest_continuation_and_may_be_longer_than_the_context(runs, capsys):
    (found,) = predicted(capsys, runs["language"], "--text", "The sea", "--max-length", 9)
    _, model, _ = load_run(runs["language"])
    task, made = load_run(runs["language"])[0], []
    prompt = task.fitted.vocabulary.encode("The sea")
    with torch.no_grad():
        for _ in range(9):
            made.append(int(model(Batch.of(torch.tensor([[*prompt, *made]])))[0, -1].argmax()))
    assert found["tokens"] == made
    assert found["whole"] == "The sea" + found["output"]
    (long,) = predicted(capsys, runs["language"], "--text", "The sea", "--max-length", 61)
    assert len(long["tokens"]) == 61 and long["tokens"][:9] == made


def test_sampling_follows_its_seed(runs, capsys):
    def draw(*more):
        return predicted(capsys, runs["language"], "--text", "A", "--sample", "--max-length", 12, *more)[0]["tokens"]

    assert draw("--seed", 5) == draw("--seed", 5) != draw("--seed", 6)
    greedy = predicted(capsys, runs["language"], "--text", "A", "--max-length", 12)[0]["tokens"]
    assert draw("--top-k", 1) == greedy == draw("--top-p", "1e-9") == draw("--temperature", "1e-4")


def test_hidden_tokens_are_guessed_where_the_text_says_mask(runs, capsys):
    (found,) = predicted(capsys, runs["masked"], "--text", "The <mask>ea wa<mask>")
    assert len(found["guesses"]) == 2 and all(len(guesses) == 5 for guesses in found["guesses"])
    best = [guesses[0]["piece"] for guesses in found["guesses"]]
    assert found["output"] == f"The {best[0]}ea wa{best[1]}"
    code, _, err = called(capsys, "predict", runs["masked"], "--text", "The sea")
    assert code == 2 and "<mask>" in err


@torch.no_grad()
def test_a_class_comes_with_the_attention_over_its_words(runs, capsys):
    text = "this film is dull zzz"
    (found,) = predicted(capsys, runs["classify"], "--text", text)
    task, model, _ = load_run(runs["classify"])
    inputs = torch.tensor([task.encode(text).tokens])
    odds = model(Batch.of(inputs))[0].softmax(-1).tolist()
    assert list(found["probabilities"].values()) == pytest.approx(odds, rel=1e-3)
    assert found["output"] == task.fitted.labels[max(range(len(odds)), key=odds.__getitem__)]
    rows, _ = model.recurrent(model.embedding(inputs))
    weights = model.attention.weights(rows.mean(1, keepdim=True), rows)[0, 0, 0]
    seen = found["looked_at"]["pieces"]
    assert [one["piece"] for one in seen] == text.split() and not seen[-1]["known"]
    assert [one["weight"] for one in seen] == pytest.approx(weights.tolist(), abs=1e-4)
    assert "attention" in found["looked_at"]["source"]


@torch.no_grad()
def test_an_encoder_shows_the_mean_attention_of_its_last_layer(runs, capsys):
    (found,) = predicted(capsys, runs["classify-encoder"], "--text", "this film is dull")
    task, model, _ = load_run(runs["classify-encoder"])
    rows = model.embedding(torch.tensor([task.encode("this film is dull").tokens]))
    first, last = model.stack.layers
    weights = last.attention.weights(last.around_attention.norm(first(rows))).mean((0, 1, 2))
    assert [one["weight"] for one in found["looked_at"]["pieces"]] == pytest.approx(weights.tolist(), abs=1e-4)
    assert "last layer" in found["looked_at"]["source"]


@torch.no_grad()
def test_without_weights_the_gradient_times_the_input_is_shown(runs, capsys):
    text = "this film is dull"
    (found,) = predicted(capsys, runs["classify-static"], "--text", text)
    assert found["looked_at"]["source"].startswith("gradient × input")
    task, model, _ = load_run(runs["classify-static"])
    model = model.double()
    ids = task.encode(text).tokens
    best, table, moved = task.fitted.labels.index(found["output"]), model.embedding.rows.weight, []
    for token in ids:  # how the class moves when a word's row is scaled; every word comes once
        logits = []
        for factor in (1 + 1e-5, 1 - 1e-5):
            before = table[token].clone()
            table[token] = before * factor
            logits.append(float(model(Batch.of(torch.tensor([ids])))[0, best]))
            table[token] = before
        moved.append(abs(logits[0] - logits[1]))
    expected = [value / sum(moved) for value in moved]
    assert [one["weight"] for one in found["looked_at"]["pieces"]] == pytest.approx(expected, rel=1e-2, abs=1e-3)


def test_a_run_that_reads_no_text_refuses(runs, capsys):
    code, out, err = called(capsys, "predict", runs["copy"], "--text", "hello")
    assert code == 2 and not out and "cannot be typed" in err and "regard evaluate" in err
    code, out, err = called(capsys, "predict", runs["digits"], "--text", "hello")
    assert code == 2 and not out and "--text: the task digits reads" in err and "Give --image" in err
    code, out, err = called(capsys, "predict", runs["digits"])
    assert code == 2 and not out and "--image: expected an input" in err


def test_an_image_is_classified_and_each_of_its_rows_has_a_weight(runs, capsys, tmp_path):
    pixels = numpy.zeros((8, 8), dtype=numpy.uint8)
    pixels[1:7, 3:5] = 255
    Image.fromarray(pixels).save(tmp_path / "one.png")
    code, out, err = called(capsys, "predict", runs["digits"], "--image", tmp_path / "one.png", "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert found["kind"] == "class" and sum(found["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert len(found["probabilities"]) == 10 and len(found["looked_at"]["pieces"]) == 8
    code, out, _ = called(capsys, "predict", runs["digits"], "--image", tmp_path / "one.png")
    assert code == 0 and "  →  " in out and "row" in out


HOSTILE = [
    "\0",
    "a\0b",
    "\x1b[31mred",
    "😀👩\u200d👧 ẞ",
    "\u202eabc",
    "e\u0301",
    "\ud800x",
    "中文字",
    "</s><pad><mask>",
    "a\tb\nc",
]


@pytest.mark.parametrize("run", ["dates", "dates-transformer", "language", "masked", "classify", "classify-static"])
def test_hostile_text_crashes_nothing_and_steers_no_terminal(run, runs, capsys):
    more = ["--max-length", "5"] if run in ("language", "dates") else []
    texts = [f"--text={'<mask>' if run == 'masked' else ''}{text}" for text in HOSTILE]
    code, out, err = called(capsys, "predict", runs[run], *texts, *more)
    assert code == 0, err
    assert not any(letter in out + err for letter in "\x1b\0\u202e")
    (out + err).encode()
    for text in ("", " ", "x" * 5000):
        code, out, err = called(capsys, "predict", runs[run], f"--text={text}", *more)
        assert code in (0, 2) and (code == 0 or "--text" in err)


def test_lines_of_stdin_are_texts_and_one_bad_one_does_not_cost_the_others(runs, capsys, monkeypatch):
    lines = "May 3 1979\r\n\n" + "x" * 99 + "\n4 June 1980"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode() + b" \xff\n")))
    code, out, _ = called(capsys, "predict", runs["dates"], "--json")
    found = json.loads(out)
    assert code == 2 and [one["text"] for one in found] == ["May 3 1979", "x" * 99, "4 June 1980 \ufffd"]
    assert "at most 32" in found[1]["error"] and found[2]["output"] is not None
    assert found[2]["notes"] == ["1 of 13 pieces are unknown to this run"]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = called(capsys, "predict", runs["dates"])
    assert code == 2 and "expected some text" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "0.5"], "--sample"),
        (["--sample", "--beam", "2"], "not both"),
        (["--beam", "0"], "--beam"),
        (["--sample", "--temperature", "0"], "--temperature"),
        (["--sample", "--temperature", "-1"], "--temperature"),
        (["--sample", "--top-p", "1.5"], "--top-p"),
        (["--max-length", "12"], "at most 11"),
        (["--sample", "--seed", "-1"], "--seed"),
    ],
)
def test_options_that_cannot_work_are_refused(options, said, runs, capsys):
    code, out, err = called(capsys, "predict", runs["dates"], "--text", "May 3 1979", *options)
    assert code == 2 and said in err and not out


def test_a_drawing_continues_below_on_a_narrow_terminal_and_wide_characters_keep_their_columns():
    weights = [[0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]
    assert picture.drawn(weights, ["x", " "], ["ab", "中", "\n"], 80) == [
        "   a",
        "   b 中␊",
        "  ┌──────┐",
        "x │  ██▓▓│",
        "␣ │██    │",
        "  └──────┘",
    ]
    lines = picture.drawn([[0.1] * 11], ["x"], list("abcdefghijk"), 20)
    assert lines[0] == "   a b c d e f g h" and lines[5] == "   i j k"
    assert all(len(line) <= 20 for line in lines)
