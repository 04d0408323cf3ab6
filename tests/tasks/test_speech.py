"""speech: what goes in, what is measured, strings of digits, and the way from a file to a transcript."""

import json
import random
import struct

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.tasks.sound.errors import distance
from regard_workbench.tasks.text.vocabulary import END, SPECIAL
from regard_workbench.training import load_run, train
from tests.tasks.sound.wav_bytes import wav, whole
from tests.tasks.stand_ins import Fixed, certain, judged

FIRST = len(SPECIAL)  # the id of the digit 0


def seeded():
    return torch.Generator().manual_seed(5)


def plain(heard, said):
    """The recursion as it is written in textbooks."""
    if not heard or not said:
        return len(heard) + len(said)
    swap = plain(heard[1:], said[1:]) + (heard[0] != said[0])
    return min(swap, plain(heard[1:], said) + 1, plain(heard, said[1:]) + 1)


def test_the_distance_of_word_sequences_is_that_of_the_textbook():
    assert distance(["one", "two", "three"], ["one", "three", "three", "four"]) == 2
    assert distance([], ["a", "b"]) == 2 and distance(["a", "b"], []) == 2 and distance(["a"], ["a"]) == 0
    draw = random.Random(3)
    for _ in range(60):
        heard, said = ([draw.choice("abc") for _ in range(draw.randrange(6))] for _ in range(2))
        assert distance(heard, said) == plain(heard, said)


@pytest.fixture(scope="module")
def speech():
    return tasks.build("speech")


def test_without_files_digits_are_spoken_in_four_voices(speech):
    counts = {split: len(speech.examples(split)) for split in ("train", "validation", "test")}
    assert counts == {"train": 684, "validation": 76, "test": 200}
    assert {one.speaker for one in speech.examples("test")} == {"alto", "bass", "child", "tenor"}
    batch = speech.collate(speech.examples("test")[:7], seeded())
    assert batch.inputs.shape[2] == 160 and (batch.inputs[~batch.keep] == 0).all()
    assert batch.targets[:, 0].sub(FIRST).tolist() == [0, 0, 0, 0, 0, 1, 1] and (batch.targets[:, 1] == END).all()


def test_a_batch_holds_what_its_sounds_hold_alone(speech):
    examples = [speech.examples("test")[n] for n in (3, 77, 150)]
    batch = speech.collate(examples, seeded())
    for row, example in enumerate(examples):
        alone = speech.collate([example], seeded())
        assert alone.keep is None and speech.length(example) == alone.inputs.shape[1]
        assert torch.equal(batch.inputs[row, : alone.inputs.shape[1]], alone.inputs[0])


def test_training_sounds_are_changed_by_the_generator_and_others_never(speech):
    some = speech.examples("train")[:3]
    one, same, other = (speech.collate(some, torch.Generator().manual_seed(n)).inputs for n in (1, 1, 2))
    assert torch.equal(one, same) and not (one.shape == other.shape and torch.equal(one, other))
    still = tasks.build("speech", augment=False)
    fixed = (still.collate(still.examples("train")[:3], torch.Generator().manual_seed(n)).inputs for n in (1, 2))
    assert torch.equal(*fixed)


def test_error_rate_and_accuracy_are_those_counted_by_hand(speech):
    batch = speech.collate([speech.examples("test")[n] for n in (0, 20, 60, 199)], seeded())
    said = [int(text) for text in batch.notes["transcripts"]]
    texts = [[FIRST + said[0], END], [END], [FIRST + said[2], FIRST + 1, END], [FIRST + (said[3] + 1) % 10, END]]
    model = Fixed(lambda b: certain(b.targets, speech.problem.answer.count), lambda b: texts)
    found = judged(speech, model, batch)
    assert found["wer"] == pytest.approx((0 + 1 + 1 + 1) / 4) and found["accuracy"] == 0.25


def test_a_classifier_is_judged_by_the_same_measures(speech):
    task = tasks.build("speech")
    task.pose(task.problems()[1])
    batch = task.collate([task.examples("test")[n] for n in (0, 20, 60, 199)], seeded())
    right = batch.targets.clone()
    right[1] = (right[1] + 1) % 10
    found = judged(task, Fixed(lambda b: certain(right, 10)), batch)
    assert found["wer"] == 0.25 and found["accuracy"] == 0.75 and task.decode([7]) == "7"


def test_strings_are_joined_from_one_speaker_with_silence_between():
    task = tasks.build("speech", strings=30, augment=False)
    lengths = set()
    for index in range(40):
        one = task.examples("validation")[index]
        assert len({part.speaker for part in one.parts}) == 1
        assert one.transcript.split() == [part.transcript for part in one.parts]
        lengths.add(len(one.parts))
        samples, at = one.samples(), 0
        for part, gap in zip(one.parts, one.gaps, strict=True):
            assert torch.equal(samples[at : at + len(part.samples)], torch.from_numpy(part.samples))
            at += len(part.samples)
            assert not samples[at : at + gap].any() and 320 <= gap <= 1600
            at += gap
        assert at == len(one)
    assert max(lengths) <= 30 and min(lengths) >= 1 and len(lengths) > 12
    again = tasks.build("speech", strings=30)
    assert [one.transcript for one in task.examples("test")[:5]] == [
        one.transcript for one in again.examples("test")[:5]
    ]
    assert len(task.problems()) == 1 and task.problem.answer.length == 31


def test_the_test_strings_hold_nothing_that_was_trained_on():
    task = tasks.build("speech", strings=4)
    trained = {part.name for part in task.recordings["train"]}
    heard = {part.name for one in task.examples("test")[:200] for part in one.parts}
    assert not trained & heard


def test_seen_and_unseen_speakers_are_measured_apart():
    task = tasks.build("speech", unseen="bass")
    assert all(one.speaker != "bass" for split in ("train", "validation") for one in task.examples(split))
    test = task.examples("test")
    assert sum(one.speaker == "bass" for one in test) == 240 and len(test) == 150 + 240
    seen = next(one for one in test if one.speaker != "bass")
    unseen = next(one for one in test if one.speaker == "bass")
    batch = task.collate([seen, unseen, unseen], seeded())
    texts = [[FIRST, END], [FIRST, END], [FIRST + 9, END]]
    model = Fixed(lambda b: certain(b.targets, task.problem.answer.count), lambda b: texts)
    found = judged(task, model, batch)
    wrong = [int(text != said) for text, said in zip("009", batch.notes["transcripts"], strict=True)]
    assert found["wer_seen"] == wrong[0] and found["wer_unseen"] == sum(wrong[1:]) / 2
    assert found["wer"] == pytest.approx(sum(wrong) / 3)
    alone = judged(task, Fixed(lambda b: certain(b.targets, 15), lambda b: texts[:1]), task.collate([seen], seeded()))
    assert "wer_unseen" not in alone, "nothing is said of whom no one has heard"


def test_lists_give_a_vocabulary_of_words_or_letters(tmp_path):
    for number in range(6):
        (tmp_path / f"{number}.wav").write_bytes(whole([100 * number, -50] * 300))
    lines = [f"{number}.wav\t{text}\n" for number, text in enumerate(["yes", "no", "no no", "yes no", "no", "yes"])]
    (tmp_path / "train.tsv").write_text("".join(lines[:4]))
    (tmp_path / "dev.tsv").write_text(lines[4])
    (tmp_path / "test.tsv").write_text(lines[5])
    words = tasks.build("speech", data=str(tmp_path))
    assert len(words.problems()) == 1 and words.problem.answer.length == 3
    letters = tasks.build("speech", data=str(tmp_path), level="character")
    batch = letters.collate(letters.examples("train"), seeded())
    assert letters.decode(batch.targets[3].tolist()) == "yes no"
    restored = tasks.TASKS["speech"](data="/nowhere", level="character")
    restored.restore(json.loads(json.dumps(letters.state())))
    assert restored.problems() == letters.problems(), "the files are not needed to use what was learned"


def test_long_recordings_and_wrong_options_are_refused(tmp_path):
    for take in (0, 5, 6):
        (tmp_path / f"1_ann_{take}.wav").write_bytes(whole([5] * 20_000))
    with pytest.raises(BadValue, match=r"1_ann_\d\.wav takes 2\.5 seconds, expected at most max_seconds=2\. Cut it"):
        tasks.build("speech", data=str(tmp_path), max_seconds=2)
    for option, value in (("strings", 0), ("rate", 100), ("bands", 1), ("unseen", "nobody"), ("level", "phoneme")):
        with pytest.raises(BadValue, match=option):
            tasks.build("speech", **{option: value})
    with pytest.raises(BadValue, match=r"--text: the task speech reads frames of sound\. Give --sound"):
        tasks.build("speech").parse({"text": "seven"})


def test_a_typed_file_of_any_sort_becomes_an_example(tmp_path, speech):
    path = tmp_path / "mine.wav"
    path.write_bytes(wav(struct.pack("<9600f", *([0.1, -0.2] * 4800)), kind=3, bits=32, channels=2, rate=48000))
    example = speech.parse({"sound": str(path)})
    batch = speech.collate([example], seeded())
    assert batch.targets is None and batch.inputs.shape == (1, 3, 160)
    shown = speech.show(example, batch)
    assert shown.words == "0.10 seconds of sound: mine.wav" and shown.pieces == ["0.00 s", "0.04 s", "0.08 s"]
    assert shown.picture.shape == (40, 12) and shown.grid == (1, 3)
    with pytest.raises(BadValue, match=r"--sound: cannot read .*none\.wav"):
        speech.parse({"sound": str(tmp_path / "none.wav")})
    path.write_bytes(whole([1] * 8000 * 61))
    with pytest.raises(BadValue, match=r"--sound: .*mine\.wav takes 61\.0 seconds, expected at most 60"):
        speech.parse({"sound": str(path)})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recognizer", "transformer", "seq2seq", "encoder", "lstm-attention"])
def test_every_kind_of_model_can_listen(name, speech):
    task = tasks.build("speech")
    problem = models.problem_for(name, task.problems())
    task.pose(problem)
    torch.manual_seed(0)
    options = {"dim": 16} | ({"layers": 1} if name != "lstm-attention" else {})
    model = models.build(name, problem, **options).eval()
    batch = task.collate([task.examples("test")[n] for n in (0, 55)], seeded())
    total, count = model.loss(model(batch), batch)
    assert total.isfinite() and count == (4 if problem.answer.needs == "decoder" else 2)


def test_a_run_on_strings_may_start_from_one_on_single_digits_and_still_writes_long_transcripts(tmp_path):
    values = {
        "model": "recognizer(dim=8, layers=1, num_heads=2)",
        "steps": 1,
        "batch_size": 2,
        "eval_limit": 2,
        "device": "cpu",
    }
    train({**values, "task": "speech", "out": str(tmp_path / "single")}, quiet=True)
    later = {**values, "task": "speech(strings=7)", "init_from": str(tmp_path / "single")}
    train({**later, "out": str(tmp_path / "strings")}, quiet=True)
    task, model, _ = load_run(tmp_path / "strings")
    assert task.problem.answer.length == model.answer.length == 8  # seven digits and the end
    train(
        {**values, "task": "speech", "init_from": str(tmp_path / "strings"), "out": str(tmp_path / "again")}, quiet=True
    )
    assert load_run(tmp_path / "again")[0].problem.answer.length == 8  # tables of positions fit


def test_training_a_few_steps_lowers_the_loss_and_the_run_can_be_used(tmp_path):
    from regard_workbench.comparison.evaluate import evaluate_run
    from regard_workbench.inspection.prediction import Writing, predict
    from regard_workbench.training.loading import load
    from regard_workbench.viewer.opening import ViewOptions, open_page

    result = train(
        {
            "task": "speech",
            "model": "recognizer(dim=16, layers=1)",
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
    assert losses[-1] < losses[0] and 0 <= result.best["value"] <= 2
    measured = {one.metric for one in evaluate_run(tmp_path / "run", device="cpu", beam=2, limit=5).metrics}
    assert measured == {"loss", "accuracy", "perplexity", "wer"}
    path = tmp_path / "digit.wav"
    path.write_bytes(whole([int(9000 * (-1) ** n) for n in range(3000)]))
    loaded = load(str(tmp_path / "run"), None, "cpu")
    for writing in (Writing(), Writing(beam=3)):
        found = predict(loaded, {"sound": str(path)}, writing)
        assert found["kind"] == "translation" and found["tokens"]
        if found["alignment"]:
            assert found["alignment"]["columns"][1] == "0.04 s"
            assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in found["alignment"]["weights"])
    page = open_page(ViewOptions(str(tmp_path / "run"), sound=str(path), target="3"))
    (cross,) = (site for site in page.page_sites if site.name.endswith("cross"))
    assert page.image["columns"] == 10 and page.image["rows"] == 1, "the spectrogram lies over the frames"
    assert (cross.rows, cross.columns) == ("targets", "frames")
