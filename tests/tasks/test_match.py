"""match: candidates that can be told apart only by comparing streams, and the measures of finding them."""

import json
import wave
from collections import Counter

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.answers.place import Found
from regard_workbench.tasks.parts.batch import Batch, Stream
from regard_workbench.training import train
from tests.tasks.stand_ins import Fixed, judged


def seeded():
    return torch.Generator().manual_seed(5)


def some(task, split, count=300):
    return [task.examples(split)[n] for n in range(count)]


def test_exactly_one_candidate_tells_the_digit_that_is_asked_for():
    for one in some(tasks.build("match", candidates=7), "train"):
        (asked,), shown = one.digits
        assert len(shown) == 7 == len(set(shown)) and shown.index(asked) == one.place


def test_with_three_streams_no_two_of_them_tell_the_place():
    """Each of the others shows the digit at one more place, and these differ."""
    wrong = Counter()
    for one in some(tasks.build("match", kinds="sound-image-text"), "train"):
        (asked,), image, text = one.digits
        assert image.count(asked) == text.count(asked) == 2
        both = [n for n in range(5) if image[n] == text[n] == asked]
        assert both == [one.place]
        wrong.update(n for n in range(5) if image[n] == asked != text[n])
    assert set(wrong) == set(range(5))


def test_places_and_digits_are_drawn_evenly():
    made = some(tasks.build("match"), "train", 1500)
    places, digits = Counter(one.place for one in made), Counter(one.digits[0][0] for one in made)
    assert all(230 < places[place] < 370 for place in range(5))
    assert all(100 < digits[digit] < 200 for digit in range(10))


@pytest.mark.parametrize("kinds", ["sound-image", "image-sound", "text-image", "sound-image-text"])
def test_batches_hold_a_stream_of_each_kind_and_padding_of_its_own(kinds):
    task = tasks.build("match", kinds=kinds, augment=False)
    examples = some(task, "validation", 6)
    batch = task.collate(examples, seeded())
    assert list(batch.streams) == kinds.split("-")
    for name, spec in task.problem.streams.items():
        stream = batch.streams[name]
        assert stream.data.shape[0] == 6 and stream.data.shape[1] <= spec.length
        for row, example in enumerate(examples):
            alone = task.collate([example], seeded()).streams[name]
            assert alone.keep is None and torch.equal(stream.data[row, : alone.data.shape[1]], alone.data[0])
    assert batch.targets.tolist() == [one.place for one in examples]
    assert batch.answers["digit"].data.tolist() == [one.digits[0][0] for one in examples]


def test_splits_share_neither_pictures_nor_recordings():
    task = tasks.build("match")
    pictures = {
        split: {row.tobytes() for some in part.values() for row in some} for split, part in task.drawings.items()
    }
    sounds = {split: {one.name for some in part.values() for one in some} for split, part in task.recordings.items()}
    for held in (pictures, sounds):
        assert not held["train"] & held["test"] and not held["train"] & held["validation"]


def test_measures_are_those_counted_by_hand():
    task = tasks.build("match", candidates=3)
    place, digit = torch.tensor([0, 2, 1, 1]), torch.tensor([4, 4, 9, 0])
    batch = Batch({"sound": Stream(torch.zeros(4, 1, 160))}, {"place": Stream(place), "digit": Stream(digit)})
    scores = torch.tensor([[3.0, 1, 2], [1, 2, 0], [5, 4, 3], [0, 1, 0]])  # ranks 1, 3, 2, 1
    said = torch.nn.functional.one_hot(torch.tensor([4, 5, 9, 1]), 10).float()
    found = judged(task, Fixed(lambda b: Found(scores, said)), batch)
    assert found["accuracy"] == found["recall_at_1"] == 0.5 and found["digit_accuracy"] == 0.5
    assert found["mrr"] == pytest.approx((1 + 1 / 3 + 1 / 2 + 1) / 4)
    odds = [scores.log_softmax(-1)[range(4), place], said.log_softmax(-1)[range(4), digit]]
    assert found["loss"] == pytest.approx(-float(sum(odds).mean()), rel=1e-5)
    assert task.decode([2]) == "place 3"


def co_attention(kinds="sound-image", **options):
    torch.manual_seed(0)
    task = tasks.build("match", kinds=kinds, augment=False)
    return task, models.build("co-attention", task.problem, dim=16, num_heads=2, **options).double().eval()


@pytest.mark.parametrize("kinds", ["sound-image", "sound-image-text"])
def test_padding_of_a_stream_is_not_read_and_every_weight_learns(kinds):
    task, model = co_attention(kinds)
    examples = some(task, "validation", 4)
    batch = task.collate(examples, seeded()).cast(torch.float64)
    outputs = model(batch)
    assert outputs.place.shape == (4, 5) and outputs.digit.shape == (4, 10)
    for row, example in enumerate(examples):
        alone = model(task.collate([example], seeded()).cast(torch.float64))
        assert torch.allclose(alone.place[0], outputs.place[row], atol=1e-9)
    spoilt = batch.streams["sound"]
    spoilt = Stream(spoilt.data.masked_fill(~spoilt.keep[..., None], 77.0), spoilt.keep)
    garbage = model(Batch({**batch.streams, "sound": spoilt}, batch.answers))
    assert torch.allclose(garbage.place, outputs.place, atol=1e-9)
    model.loss(outputs, batch)[0].backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]


def test_without_interaction_a_stream_sees_nothing_of_the_other():
    """Same weights, same number of them; only the rows of a stream's own reach it."""
    task, model = co_attention()
    _, apart = co_attention(interaction=False)
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in apart.named_parameters()}
    apart.load_state_dict(model.state_dict())
    batch = task.collate(some(task, "validation", 2), seeded()).cast(torch.float64)
    other = Batch({**batch.streams, "image": Stream(batch.streams["image"].data + 1)}, batch.answers)
    for one, sees in ((model, True), (apart, False)):
        rows = []
        hook = one.norms[0].register_forward_hook(lambda module, inputs, output, rows=rows: rows.append(output))
        one(batch), one(other)
        hook.remove()
        assert torch.equal(*rows) != sees


def test_what_the_streams_attend_to_is_seen_with_the_names_of_their_positions():
    import regard

    task, model = co_attention()
    example = task.examples("validation")[3]
    batch = task.collate([example], seeded()).cast(torch.float64)
    with regard.observe(model) as seen:
        model(batch)
    weights = seen["layers.0.between.0.to_source"].weights()
    assert weights.shape == (1, 2, batch.inputs.shape[1], 5) and torch.allclose(weights.sum(-1), torch.ones(1).double())
    back = seen["layers.0.between.0.to_query"].weights()
    assert back.shape == (1, 2, 5, batch.inputs.shape[1])
    shown = task.show(example, batch)
    assert shown.called == "frames" and len(shown.pieces) == batch.inputs.shape[1]
    assert len(shown.streams["pictures"]) == 5 and shown.streams["pictures"][example.place].startswith(
        f"{example.place + 1}: "
    )


@pytest.mark.slow
def test_wrong_kinds_and_sizes_are_refused(tmp_path):
    with pytest.raises(BadValue, match="kinds: there is no 'video'"):
        tasks.build("match", kinds="sound-video")
    for kinds in ("sound", "image-image"):
        with pytest.raises(BadValue, match="kinds: expected two or three of"):
            tasks.build("match", kinds=kinds)
    with pytest.raises(BadValue, match="candidates: expected at most 10"):
        tasks.build("match", candidates=11)


def test_recordings_that_lack_a_digit_are_refused_before_a_run_begins(tmp_path):
    """A run folder was made first, and stayed behind with a checkpoint of step 0."""
    for take in range(17):
        with wave.open(str(tmp_path / f"3_ann_{take}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(8000)
            file.writeframes(bytes(2 * (2003 + take)))
    task = tasks.build("match", data=str(tmp_path))
    with pytest.raises(BadValue, match=rf"{tmp_path.name} has no recording of the digit \d for \w+\. Expected some"):
        task.examples("train")


def test_a_few_steps_lower_the_loss(tmp_path):
    train(
        {
            "task": "match",
            "model": "co-attention(dim=16)",
            "steps": 20,
            "batch_size": 8,
            "eval_every": 20,
            "optim": {"lr": 5e-3, "warmup": 2},
            "out": str(tmp_path / "run"),
            "device": "cpu",
        },
        quiet=True,
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert sum(losses[-5:]) < sum(losses[:5])
    last = next(row for row in reversed(rows) if "recall_at_1" in json.dumps(row))
    assert "accuracy" in json.dumps(last)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_same_model_without_interaction_stays_below_the_stated_score(tmp_path):
    """Tone digits among five pictures; chance is 20 %."""
    from regard_workbench.comparison.evaluate import evaluate_run

    name = "co-attention(interaction=false)"
    train({"task": "match", "model": name, "out": str(tmp_path / "run"), "device": "cpu"}, quiet=True)
    found = evaluate_run(tmp_path / "run", device="cpu")["accuracy"]
    assert found < tasks.build("match").recipe.reaches["accuracy"] - 0.1
