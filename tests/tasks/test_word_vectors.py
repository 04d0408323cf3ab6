"""Vectors counted from text: PPMI by hand, its decomposition against numpy, what a tagger reads of them."""

import math

import numpy as np
import pytest
import torch

import regard
from regard_workbench import models, tasks
from regard_workbench.tasks.text.word_vectors import DISTANCES, _surprise, counted_vectors
from regard_workbench.training.loading import load

COUNT = 7


def by_hand(sentences, count):
    """Pairs counted one by one in a dictionary; each distance has its own columns."""
    seen = {}
    for sentence in sentences:
        for at, word in enumerate(sentence):
            for place, distance in enumerate(DISTANCES):
                other = at + distance
                if word >= 0 and 0 <= other < len(sentence) and sentence[other] >= 0:
                    cell = (word, place * count + sentence[other])
                    seen[cell] = seen.get(cell, 0) + 1
    total = sum(seen.values())
    rows = [sum(n for (row, _), n in seen.items() if row == word) for word in range(count)]
    columns = [
        sum(n for (_, one), n in seen.items() if one == column) ** 0.75 for column in range(len(DISTANCES) * count)
    ]
    scale = total / sum(columns)
    found = np.zeros((count, len(DISTANCES) * count))
    for (row, column), n in seen.items():
        found[row, column] = max(0.0, math.log(n * total / (rows[row] * columns[column] * scale)))
    return found


def sentences(seed=3):
    generator = np.random.default_rng(seed)
    return [generator.integers(-1, COUNT - 1, size=size).tolist() for size in (11, 5, 1, 23, 2, 13)]


def test_the_table_of_surprise_is_the_one_counted_by_hand():
    given = sentences()
    text = [number for one in given for number in (*one, -1, -1)]
    found = _surprise(np.array([-1, -1, *text]), COUNT).to_dense().numpy()
    assert np.allclose(found, by_hand(given, COUNT), atol=1e-5) and (found > 0).any()


def test_vectors_are_the_scaled_singular_vectors_of_length_one():
    given, width = sentences(), 3
    left, sizes, _ = np.linalg.svd(by_hand(given, COUNT))
    expected = (left[:, :width] * np.sqrt(sizes[:width]))[: COUNT - 1]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = counted_vectors(given, COUNT, width)
    assert np.allclose((found @ found.T)[:-1, :-1], expected @ expected.T, atol=1e-3), "up to signs of columns"
    assert (found[COUNT - 1] == 0).all(), "a word without neighbours"
    assert torch.equal(found, counted_vectors(given, COUNT, width)), "the same in every process"


def test_random_numbers_of_the_caller_are_left_alone_and_missing_columns_are_zeros():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = counted_vectors([[0, 1, 0, 1]], 2, 5)
    assert torch.equal(torch.rand(3), expected)
    assert found.shape == (2, 5) and (found[:, 2:] == 0).all()
    assert (counted_vectors([[0], []], 2, 5) == 0).all(), "no word has a neighbour"


def text_and_tags(folder):
    for split in ("train", "dev", "test"):
        (folder / f"{split}.conll").write_text("Anna B-person\nleft O\n\nOslo B-place\nslept O\n")
    text = folder / "plain.txt"
    lines = [f"yesterday {name} was here again" for name in ("Anna", "Otto")] * 5
    lines += [f"in the town of {name} , nobody slept" for name in ("Oslo", "Riga")] * 5
    text.write_text("\n".join(lines) + "\n")
    return {"data": str(folder), "text": str(text)}


def test_a_name_that_only_the_text_knows_is_read_like_its_neighbours_even_where_words_are_hidden(tmp_path):
    task = tasks.build("tag", **text_and_tags(tmp_path), vectors=4, hide_rare=1e9)
    spec, words = task.streams()["vectors"], task.forms.words
    anna, otto, oslo, riga = (spec.vectors[words.encode(name)[0]] for name in ("anna", "otto", "oslo", "riga"))
    assert float(anna @ otto) > 0.9 > float(anna @ oslo) and float(oslo @ riga) > 0.9
    assert (spec.vectors[:5] == 0).all(), "padding and unknown words have none"
    task.pose(task.problems()[0])
    batch = task.collate(task.examples("train"), torch.Generator().manual_seed(1))
    assert (batch.inputs == 1).all() and words.pieces(batch.streams["vectors"].data[0].tolist()) == ["anna", "left"]


def test_a_run_keeps_its_vectors_and_does_not_train_them(tmp_path):
    given = text_and_tags(tmp_path)
    spec = f"tag(text='{given['text']}', vectors=4)"
    regard.train(
        task=spec,
        data=given["data"],
        model="tagger(dim=8)",
        steps=2,
        batch_size=2,
        device="cpu",
        out=str(tmp_path / "run"),
    )
    (tmp_path / "plain.txt").unlink()
    run = load(tmp_path / "run")
    fresh = run.task.streams()["vectors"]
    assert fresh.vectors is None and fresh.width == 4
    table = run.model.given["vectors"].rows.table
    assert float(table.norm(dim=1).max()) == pytest.approx(1, abs=1e-5)
    assert not any(parameter is table for parameter in run.model.parameters())
    assert 0 <= regard.evaluate(tmp_path / "run")["f1"] <= 1, "without the text"
    problem = run.task.problems()[0]
    assert models.build("tagger", problem, dim=8).given["vectors"].rows.table.shape == table.shape
