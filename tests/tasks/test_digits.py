"""digits: the images of scikit-learn, the same split always."""

from collections import Counter

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from regard.errors import BadValue
from regard_workbench import tasks
from tests.tasks.stand_ins import Fixed, certain, judged


def test_every_image_is_in_one_split_and_every_digit_in_all():
    task, data = tasks.build("digits"), load_digits()
    counts = {}
    seen = Counter()
    for split in ("train", "validation", "test"):
        examples = task.examples(split)
        counts[split] = len(examples)
        seen.update((example.pixels.numpy().tobytes(), example.digit) for example in examples)
        assert set(Counter(example.digit for example in examples)) == set(range(10))
    assert counts == {"train": 1259, "validation": 269, "test": 269}
    whole = Counter(
        ((row / 16).astype(np.float32).tobytes(), digit) for row, digit in zip(data.data, data.target, strict=True)
    )
    assert seen == whole


def test_shares_of_the_digits_are_equal():
    task = tasks.build("digits")
    whole = Counter(load_digits().target.tolist())
    held = Counter(example.digit for example in task.examples("test"))
    assert held == Counter(example.digit for example in task.examples("validation"))
    assert all(held[digit] == round(0.15 * whole[digit]) for digit in range(10))


def test_rows_and_pixels_are_the_same_numbers():
    rows, pixels = tasks.build("digits"), tasks.build("digits", order="pixels")
    one, other = rows.examples("test")[13], pixels.examples("test")[13]
    assert one.pixels.shape == (8, 8) and other.pixels.shape == (64, 1)
    assert torch.equal(one.pixels.flatten(), other.pixels.flatten())
    assert pixels.problem.inputs.width == 1 and pixels.problem.inputs.length == 64
    assert rows.problem.inputs.width == 8 and rows.problem.answer.classes == 10
    assert float(one.pixels.min()) >= 0.0 and float(one.pixels.max()) <= 1.0
    with pytest.raises(BadValue, match="order: there is no 'columns'"):
        tasks.build("digits", order="columns")


def test_accuracy_counts_right_answers():
    task = tasks.build("digits")
    batch = task.collate(task.examples("validation")[:11], torch.Generator())
    guesses = batch.targets.clone()
    guesses[:4] = (guesses[:4] + 1) % 10
    found = judged(task, Fixed(lambda b: certain(guesses, 10)), batch)
    assert found["accuracy"] == pytest.approx(7 / 11)
    assert task.decode([7]) == "7"
    with pytest.raises(BadValue, match=r"--text: the task digits reads vectors\. Give --image"):
        task.parse({"text": "7"})
    assert task.collate([], torch.Generator()).size == 0
