"""Writing the next turn: what is read and asked, variety and yardsticks by hand, and a chat about it."""

import io
import json
import pickle

import pytest
import torch

from regard.decoding import Hypothesis
from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.cli.main import main
from regard_workbench.comparison.grid import compose
from regard_workbench.inspection import attribution
from regard_workbench.tasks.formats.exchanges import Exchange, read_turns
from regard_workbench.tasks.measures.distinct import distinct
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.tasks.reply import BLEU
from regard_workbench.tasks.text.vocabulary import END
from regard_workbench.training import train
from regard_workbench.training.evaluation import Fingerprint

TURNS = [
    ("thai food", "which area ?"),
    ("thai food", "which area ?", "the north", "the jade house is nice"),
    ("greek food", "which area ?"),
    ("greek food", "which area ?", "the south", "the olive garden is nice"),
    ("a phone number", "it is 12 34"),
    ("bye", "bye"),
]


def seeded():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def folder(tmp_path):
    for name in ("train", "val", "test"):
        rows = TURNS if name == "train" else TURNS[1:4]
        (tmp_path / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return tmp_path


def posed(task, model):
    task.pose(models.problem_for(model, task.problems()))
    return task


def test_the_last_turns_are_read_each_after_who_speaks(folder):
    task = tasks.build("reply", data=folder, turns=3)
    one = task.examples("train")[1]
    assert task.input_pieces(one) == [
        "[user]",
        "thai",
        "food",
        "[system]",
        "which",
        "area",
        "?",
        "[user]",
        "the",
        "north",
    ]
    assert task.decode(one.target) == "the jade house is nice" and one.target[-1] == END
    short = tasks.build("reply", data=folder, turns=2)
    assert short.input_pieces(short.examples("train")[1])[0] == "[system]", "the user spoke last"


def test_a_model_that_continues_is_asked_for_the_reply_alone(folder):
    task = posed(tasks.build("reply", data=folder), "decoder")
    batch = task.collate(task.examples("train"), seeded())
    for row, (*_, reply) in enumerate(TURNS):
        asked = batch.target_keep[row]
        words = task.fitted.target_vocabulary.pieces(batch.targets[row][asked].tolist())
        assert words == [*reply.split(), "</s>"]
        first = int(asked.nonzero()[0])
        alone = batch.map(lambda tensor, row=row: tensor[row : row + 1])
        assert task.show(task.examples("train")[row], alone).pieces[first] == "[system]"
        last = int(asked.nonzero()[-1])
        assert torch.equal(batch.inputs[row, 1 : last + 1], batch.targets[row, :last])
        assert batch.keep is None and not batch.targets[row, last + 1 :].any()
    assert batch.inputs.shape[1] <= task.problem.inputs.length
    typed = task.collate([task.parse({"text": "thai food"})], seeded())
    assert typed.answers == {} and task.fitted.target_vocabulary.pieces(typed.inputs[0].tolist())[1:3] == [
        "thai",
        "food",
    ]


@pytest.mark.parametrize("model", ["transformer", "decoder"])
def test_what_is_written_is_judged_against_the_reply(folder, model):
    """A stand-in writes known texts; every prompt reaches it once, whatever its length."""
    task = posed(tasks.build("reply", data=folder), model)
    batch = task.collate(task.examples("test"), seeded())
    texts = ["the jade house is nice", "which food ?", "the garden is nice"]
    seen = []

    class StandIn:
        def generate(self, given, **options):
            found = []
            for row in given.inputs.tolist():
                words = task.fitted.source_vocabulary.pieces([token for token in row if token])
                seen.append(words)
                place = 1 if "greek" in words and "south" not in words else 2 if "south" in words else 0
                found.append([Hypothesis([*task.fitted.target_vocabulary.encode(texts[place]), END], 0.0, True)])
            return found

    written = task.written(Answered(StandIn(), batch))
    assert written.texts == texts and len(seen) == 3
    assert written.references == [row[-1] for row in TURNS[1:4]]
    metrics = {metric.name: metric for metric in task.metrics()}
    state = metrics["bleu"].of(Answered(StandIn(), batch))
    # By hand: unigrams 5 + 2 + 4 of 5 + 3 + 4 are right.
    assert (state["right 1"], state["total 1"], state["reference"]) == (11, 12, 13)
    first = metrics["distinct_1"].of(Answered(StandIn(), batch))
    # the jade house is nice | which food ? | the garden is nice: 9 different words of 12
    assert metrics["distinct_1"].value(first) == pytest.approx(9 / 12)
    second = metrics["distinct_2"].of(Answered(StandIn(), batch))
    # "is nice" comes twice: 8 different of 9 pairs
    assert metrics["distinct_2"].value(second) == pytest.approx(8 / 9)


def test_models_of_both_answers_are_compared_on_the_same_replies(folder):
    """The hash of the examples depends neither on how a model reads them nor on the size of batches."""
    found = set()
    for model, size in (("transformer", 3), ("transformer", 2), ("decoder", 3), ("decoder", 1)):
        task = tasks.build("reply", data=str(folder))
        posed(task, model)
        digest, examples = Fingerprint(), task.examples("test")
        for begin in range(0, len(examples), size):
            digest.add(task.collate(examples[begin : begin + size], seeded()))
        found.add(digest.hexdigest)
    assert len(found) == 1
    kept = compose({"task": "reply", "data": str(folder)}, ["transformer", "decoder"])
    assert [one.label for one in kept.contestants] == ["transformer", "decoder"] and not kept.left_out


def test_variety_merges_as_if_all_texts_were_one_batch():
    metric = distinct(2, lambda _: None)
    parts = [["a b c", "a b"], ["b c d"], ["x"]]
    states = [json.loads(json.dumps(metric.counted(part))) for part in parts]
    whole = metric.counted([text for part in parts for text in part])
    assert metric.merge(states) == whole == {"grams": ["a b", "b c", "c d"], "total": 5}
    assert metric.value(whole) == pytest.approx(3 / 5) and metric.value(metric.counted(["a"])) != metric.value(whole)
    assert metric.of(None) is None


def test_yardsticks_reply_with_the_most_frequent_and_with_the_nearest(folder):
    task = tasks.build("reply", data=folder)
    counts = task.yardsticks("test")
    # "which area ?" is the reply to the second test context; of the other two no word of it is in the reply.
    assert (counts["frequent"]["right 1"], counts["frequent"]["total 1"]) == (3, 9)
    # Every test context is one of the training contexts, so that its own reply is found.
    assert BLEU.score(counts["nearest"]) == pytest.approx(100.0)
    named = [metric.name for metric, _ in task.examine(None, "test", batch_size=32, device="cpu")]
    assert named == ["frequent_bleu", "nearest_bleu"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("only one column\n", ":1: expected turn TAB … TAB reply, got 1 column: 'only one column'"),
        ("a\tb\n\t b\n", ":2: the context is empty"),
        ("a\tb\nc\t\n", ":2: the reply is empty"),
    ],
)
def test_lines_that_are_no_exchange_are_refused(tmp_path, text, words):
    path = tmp_path / "bad.tsv"
    path.write_text(text)
    with pytest.raises(BadValue) as refused:
        read_turns(path, "utf-8", False)
    assert words in str(refused.value)


def test_state_restores_without_files(folder):
    task = tasks.build("reply", data=folder, turns=3)
    gone = tasks.build("reply", json.loads(json.dumps(task.state())), data="/nowhere/at/all")
    assert gone.problems() == task.problems() and gone.fitted.turns == 3
    assert pickle.loads(pickle.dumps(task)).problems() == task.problems()
    example = gone.parse(gone.conversation(["thai | food", "which area ?", "the  moon"]))
    assert gone.input_pieces(example)[:3] == ["[user]", "thai", "food"]
    notes = gone.understood({"text": ""}, example).notes
    assert notes == ["1 of 10 words are unknown to this run"]


def test_generated_replies_follow_the_dialogue():
    task = tasks.build("reply")
    some = task.rows["train"]
    assert all(one.right and one.reply for one in some)
    assert some[0] == Exchange(some[0].context[:1], some[0].reply, True, some[0].path, None)
    assert any(len(one.context) > 4 for one in some)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["transformer(layers=1, dim=16)", "seq2seq(dim=16)", "decoder(layers=1, dim=16)"])
def test_a_chat_shows_what_each_word_attended_to(folder, tmp_path, model, monkeypatch, capsys):
    run = tmp_path / "run"
    train(
        {
            "task": "reply",
            "data": [str(folder)],
            "model": model,
            "steps": 60,
            "batch_size": 6,
            "out": str(run),
            "device": "cpu",
            "eval_every": 60,
            "optim": {"lr": 1e-2},
        },
        quiet=True,
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("thai food\n\n|\n/new\ngreek food\nthe south\n/quit\nnever read\n"))
    assert main(["chat", str(run), "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert [one["said"] for one in found] == ["thai food", "greek food", "the south"]
    assert "A new dialogue" in captured.err and "none of them empty" in captured.err
    assert found[0]["output"] == "which area ?"
    seen = found[0]["attention"]
    assert seen["rows"] == ["which", "area", "?"] and seen["columns"][:3] == ["[user]", "thai", "food"]
    assert all(len(row) == len(seen["columns"]) for row in seen["weights"])
    assert [sum(row) for row in seen["weights"]] == pytest.approx([1.0] * 3, abs=1e-3)
    assert len(found[2]["attention"]["columns"]) > len(found[1]["attention"]["columns"]), "what was said before is read"
    monkeypatch.setattr("sys.stdin", io.StringIO("thai food\n"))
    assert main(["chat", str(run), "--attended", "1", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "which area ?" and lines[1].split()[:2] == ["which", "←"]


def test_a_chat_refuses_runs_that_do_not_reply_and_wrong_options(tmp_path, capsys):
    train({"task": "dates", "steps": 1, "out": str(tmp_path / "dates"), "device": "cpu"}, quiet=True)
    assert main(["chat", str(tmp_path / "dates"), "--device", "cpu"]) == 2
    assert "dates does not reply to what is said. Tasks that do: reply, respond" in capsys.readouterr().err
    for wrong, words in (
        (["--temperature", "0"], "--temperature: expected a finite number above 0"),
        (["--beam", "0"], "--beam: expected at least 1"),
        (["--beam", "2", "--temperature", "1"], "expected --beam or --temperature"),
    ):
        assert main(["chat", str(tmp_path / "dates"), *wrong]) == 2
        assert words in capsys.readouterr().err


@torch.no_grad()
def test_the_attention_of_a_continuation_is_that_of_the_rows_that_wrote_it(folder):
    task = posed(tasks.build("reply", data=folder), "decoder")
    torch.manual_seed(0)
    model = models.build("decoder(layers=1, dim=12, num_heads=3)", task.problem).double().eval()
    batch = task.collate([task.examples("test")[0]], seeded())
    found = attribution.continuation(model, batch, 4)
    length = batch.inputs.shape[1]
    rows = model.embedding(batch.inputs)
    layer = model.stack.layers[0]
    weights = layer.attention.weights(layer.around_attention.enter(rows))[0].mean(0)
    assert torch.allclose(found.weights.double(), weights[length - 5 : length - 1], atol=1e-6)
    assert (found.weights[0, length - 4 :] == 0).all(), "a word does not attend to itself or later ones"
