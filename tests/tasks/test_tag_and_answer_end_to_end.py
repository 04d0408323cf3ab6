"""tag and answer from training to prediction: a small run learns, is measured, explained and opened in the page."""

import json

import pytest
import torch

import regard
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.inspection import attribution
from regard_workbench.inspection.examples import choose, prepare
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run

pytestmark = pytest.mark.slow  # small runs are trained


def trained(folder, **settings):
    return train({"out": str(folder), "device": "cpu", **settings}, quiet=True)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tag") / "run"
    model = "tagger(dim=32, character_dim=24, dropout=0.0, num_heads=2)"
    settings = {"optim": {"lr": 1e-2, "warmup": 10}, "steps": 70, "batch_size": 16, "eval_every": 70}
    return folder, trained(folder, task="tag", model=model, **settings)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answer")
    facts = []
    for number in range(60):
        who, where = ("Mary", "John")[number % 2], ("hall", "garden", "attic")[number % 3]
        other = ("John", "Mary")[number % 2]
        facts.append(f"1 {who} went to the {where}.\n2 {other} went to the cellar.\n3 Where is {who}?\t{where}\t1\n")
    for kind in (1, 2):
        for split in ("train", "valid", "test"):
            (folder / f"qa{kind}_x_{split}.txt").write_text("".join(facts))
    settings = {
        "optim": {"lr": 2e-2, "warmup": 0, "schedule": "constant"},
        "steps": 120,
        "batch_size": 20,
        "eval_every": 40,
    }
    model = "answerer(dim=20, hops=2, linear_start=30)"
    return folder / "run", trained(folder / "run", task="answer", model=model, data=str(folder), **settings)


def test_a_small_tagger_learns_names_it_never_saw(tagged):
    assert tagged[1].best["value"] > 0.6


def test_a_predicted_sentence_has_its_entities_in_brackets(tagged, capsys):
    assert main(["predict", str(tagged[0]), "--text", "Dr Quinara Holski lives in Zanoburg .", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["output"].replace("[", "").split("]")[0].startswith("Dr Quinara Holski")
    assert found["kind"] == "answer" and len(found["predicted"]) == 7


def test_tags_of_a_run_are_measured_with_their_protocol(tagged):
    found = regard.evaluate(tagged[0], "validation")
    assert found["f1"] > 0.6 and found["accuracy"] > 0.8
    assert "conlleval" in found.protocol["f1"]
    assert max(found[f"f1_{type}"] for type in ("company", "person", "place")) >= found["f1"]


def test_attention_over_the_words_can_be_shown(tagged):
    loaded = load(str(tagged[0]))
    batch, shown = prepare(loaded.task, choose(loaded.task))
    (seen,), missing = attribution.attributions(loaded.model, batch, shown)
    assert not missing and seen.columns == shown.pieces and seen.heads.shape[0] == 2
    opened = open_run(ViewOptions(where=str(tagged[0])), str(tagged[0]), None, print)
    opened.run()
    assert opened.labels["tokens"] == shown.pieces


def test_a_small_answerer_learns_and_the_error_of_each_task_is_measured(answered):
    folder, result = answered
    assert result.best["value"] < 0.2 and result.best["metric"] == "error"
    found = regard.evaluate(folder)
    assert found["error"] == pytest.approx((found["error_qa1"] + found["error_qa2"]) / 2)
    assert found["failed_tasks"] in (0, 1, 2)


def test_the_weights_of_each_hop_stand_beside_the_sentences(answered, capsys):
    text = "Mary went to the attic. John went to the cellar. Where is Mary?"
    assert main(["predict", str(answered[0]), "--text", text, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    seen = found["looked_at"]
    assert found["output"] == "attic" and seen["source"] == "hops over the memory"
    assert [one["piece"] for one in seen["pieces"]] == ["mary went to the attic", "john went to the cellar"]
    assert len(seen["readings"]) == 2
    for weights in seen["readings"]:
        assert sum(weights) == pytest.approx(1.0, abs=1e-3)
    assert main(["predict", str(answered[0]), "--text", text]) == 0
    shown = capsys.readouterr().out
    assert "hops over the memory, one column each" in shown
    line = next(line for line in shown.splitlines() if "mary went" in line)
    assert line.split()[:2] == [f"{weights[0]:.3f}" for weights in seen["readings"]]


def test_the_page_names_sentences(answered):
    opened = open_run(ViewOptions(where=str(answered[0])), str(answered[0]), None, print)
    opened.run()
    assert all(" went to the " in name for name in opened.labels["sentences"])
    assert opened.labels["question"][:2] == ["where", "is"]


def test_weights_learned_on_hidden_words_are_carried_over_to_tags(tmp_path):
    """All but the head: the vocabularies are the same because data and text are."""
    (tmp_path / "train.conll").write_text("Anna B-person\nleft O\n\nOslo B-place\nburns O\n" * 5)
    (tmp_path / "dev.conll").write_text("Anna B-person\nleft O\n")
    (tmp_path / "test.conll").write_text("Anna B-person\nleft O\n")
    (tmp_path / "plain.txt").write_text("the cat left oslo today\n" * 120)
    text = tmp_path / "plain.txt"
    model, settings = ("tagger(dim=8, character_dim=4, layers=1)", {"steps": 3, "batch_size": 8, "data": str(tmp_path)})
    first = tmp_path / "words"
    trained(first, task=f"hidden-words(text='{text}')", model=model, **settings)
    second = tmp_path / "tags"
    trained(second, task=f"tag(text='{text}')", model=model, init_from=str(first), **{**settings, "steps": 0})
    one, two = (load(str(folder)).model.state_dict() for folder in (first, second))
    shared = [name for name in two if not name.startswith("head.")]
    assert shared and all(torch.equal(one[name], two[name]) for name in shared)


@pytest.mark.parametrize("parts", [0, 31])
def test_a_hidden_word_is_guessed_with_and_without_parts_and_has_no_figure(parts, tmp_path, capsys):
    model = "tagger(dim=16, layers=1, num_heads=2)"
    trained(tmp_path / "run", task=f"hidden-words(parts={parts})", model=model, steps=1, batch_size=3, eval_limit=5)
    asked = [
        "predict",
        str(tmp_path / "run"),
        "--text",
        "minister <mask> said that the vote was fair .",
        "--device",
        "cpu",
    ]
    assert main([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    (guesses,) = found["guesses"]
    words = found["output"].split()
    assert words[1] == guesses[0]["piece"] and words[:1] + words[2:5] == ["minister", "said", "that", "the"]
    assert main([*asked, "--figure", str(tmp_path / "x.svg")]) == 2
    assert "--figure: there is nothing to draw" in capsys.readouterr().err


def test_hidden_words_are_unknown_most_without_characters_and_only_known_ones_are_asked_for(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conll").write_text("Anna B-person\nleft O\n")
    text = tmp_path / "plain.txt"
    text.write_text("\n".join(["Anna left a rareword today"] + ["Anna left a b today"] * 149) + "\n")
    task = tasks.build("hidden-words", data=str(tmp_path), text=str(text))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [145, 3, 3]
    spelled = []
    for seed in range(40):
        batch = task.collate(task.examples("validation"), torch.Generator().manual_seed(seed))
        words, letters = batch.streams["words"].data, batch.streams["characters"].data
        asked = batch.target_keep
        assert asked.any() and (words[asked] == 1).all() and (batch.streams["shapes"].data[asked] != 0).all()
        assert (words[~asked] == batch.targets[~asked]).all() and (letters[~asked] != 0).any(-1).all()
        assert not asked[0, 3], "rareword is unknown"
        spelled += (letters[asked] != 0).any(-1).tolist()
    assert 0.1 < sum(spelled) / len(spelled) < 0.5, "of three hidden words in ten the characters are read"


def test_parts_of_hidden_words_are_read_where_their_characters_are(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conll").write_text("Anna B-person\nleft O\n\nOtto B-person\nwent O\n")
    task = tasks.build("hidden-words", data=str(tmp_path), parts=89)
    kinds = set()
    for seed in range(30):
        batch = task.collate(task.examples("train"), torch.Generator().manual_seed(seed))
        hidden, parts = batch.target_keep, batch.inputs[..., 1:]
        spelled = (batch.streams["characters"].data != 0).any(-1)
        assert (batch.inputs[hidden][:, 0] == 1).all() and spelled[~hidden].all()
        assert torch.equal((parts != 0).any(-1), spelled)
        kinds |= set(spelled[hidden].tolist())
    assert kinds == {True, False}


def test_hidden_words_are_guessed_where_a_user_says_so(tmp_path, capsys):
    trained(tmp_path / "run", task="hidden-words", model="tagger(dim=16, layers=1)", steps=2, eval_limit=8)
    text = "minister <mask> lives in <mask>"
    assert main(["predict", str(tmp_path / "run"), "--text", text, "--device", "cpu", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    words = found["output"].split()
    assert (words[0], words[2], words[3]) == ("minister", "lives", "in") and len(found["guesses"]) == 2
    assert [guess[0]["piece"] for guess in found["guesses"]] == [words[1], words[4]]
    assert main(["predict", str(tmp_path / "run"), "--text", "no blank", "--device", "cpu"]) == 2
    assert "Write <mask> where one is hidden" in capsys.readouterr().err
