"""WOZ 2.0 JSON is read as it stands; what is wrong with a file is said with its line."""

import json
from pathlib import Path

import pytest

from regard.errors import BadValue
from regard_workbench.tasks.formats.splits import files_by_split
from regard_workbench.tasks.formats.woz import read_dialogues, read_ontology, read_splits, spoken
from regard_workbench.tasks.generated import restaurants


def turn(user="thai food", system="", label=(), state=(), acts=()):
    believed = [{"slots": [list(pair)], "act": "inform"} for pair in state]
    believed += [{"slots": [["slot", value]], "act": "request"} for slot, value in label if slot == "request"]
    return {
        "transcript": user,
        "system_transcript": system,
        "turn_label": [list(pair) for pair in label],
        "belief_state": believed,
        "system_acts": list(acts),
    }


def written(path: Path, *dialogues, text=None):
    made = [{"dialogue_idx": n, "dialogue": turns} for n, turns in enumerate(dialogues)]
    path.write_text(json.dumps(made, indent=1) if text is None else text)
    return path


def test_turns_are_read_with_acts_labels_and_goals(tmp_path):
    first = turn("Thai food, please!", label=[("food", " Thai")], state=[("food", "thai")])
    second = turn(
        "Centre. What's their phone?",
        "Which area?",
        [("area", "center"), ("request", "phone")],
        [("food", "thai"), ("area", "center")],
        ["area", ["food", "thai"]],
    )
    path = written(tmp_path / "a.json", [first, second], [turn()])
    one, two = read_dialogues(path)
    assert one.turns[0].user == "thai food , please !" and one.turns[0].system == ""
    assert one.turns[0].label == (("food", "thai"),)
    assert one.turns[1].acts == (("area",), ("food", "thai"))
    assert one.turns[1].label == (("area", "centre"), ("request", "phone"))
    assert one.turns[1].state == (("food", "thai"), ("area", "centre")), "requests are no goals"
    assert one.utterances() == ["thai food , please !", "which area ?", "centre . what ' s their phone ?"]
    lines = path.read_text().splitlines()
    assert [index + 1 for index, line in enumerate(lines) if "dialogue_idx" in line] == [one.line + 1, two.line + 1]
    for read in (*one.turns, *two.turns):
        words = read.user.split()[0]
        assert lines[read.line - 1].strip() == "{" and words in lines[read.line].lower()


def test_words_numbers_and_punctuation_are_separated():
    assert spoken("I'd like CB4 3LE,\tfor £20!") == "i ' d like cb 4 3 le , for £ 20 !"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "expected a JSON list of dialogues"),
        ("{}", 1, "expected a JSON list of dialogues"),
        ("[]", None, "holds no dialogue"),
        ('[\n {"dialogue_idx": 0, "dialogue": []}]', 2, "dialogue 1 has no turns"),
        ("[\n\n3]", 3, "dialogue 1: expected an object with a list"),
        ('[{"dialogue": [\n{"transcript": "a"},\n{"transcript": 5}]}]', 3, "turn 2: expected a text 'transcript'"),
        ('[{"dialogue": [\n{"transcript": " "}]}]', 2, "turn 1: the user says nothing"),
        ('[{"dialogue": [\n{"transcript": "a", "turn_label": [["food"]]}]}]', 2, r"expected pairs \[slot, value\]"),
        ('[{"dialogue": [\n{"transcript": "a", "system_acts": [7]}]}]', 2, "system_acts: expected slots"),
        ('[{"dialogue": [\n{"transcript": "a", "belief_state": [7]}]}]', 2, "belief_state: expected objects"),
        ('[{"dialogue": [\n{"transcript": "a", "belief_state": 7}]}]', 2, "belief_state: expected objects"),
        ('[{"dialogue": [\n{"transcript": "a", "belief_state": null}]}]', 2, "belief_state: expected objects"),
        ('[{"dialogue": [7]}]', 1, "turn 1: expected an object"),
        ('[\n{"dialogue": [{"transcript": "a"}]},\n{"dialogue": [{"trans', 3, "not valid JSON.*cut off"),
        ('[\n{"dialogue": [{"transcript": "a"}]}\n', 3, "not valid JSON: expected ',' or ']'"),
        ("[" * 100_000, 1, "dialogue 1: expected an object with a list"),
        ('[{"dialogue": [' + "[" * 100_000, None, "not valid JSON: nested too deeply"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path, text, line, words):
    path = written(tmp_path / "bad.json", text=text)
    with pytest.raises(BadValue, match=words) as refused:
        read_dialogues(path)
    where = str(path) if line is None else f"{path}:{line}: "
    assert str(refused.value).startswith(where)


def test_an_ontology_is_read_or_refused(tmp_path):
    path = tmp_path / "ontology.json"
    path.write_text('{"informable": {"food": ["Thai", "thai "], "area": ["center"]}, "requestable": []}')
    assert read_ontology(path) == {"food": ["thai"], "area": ["centre"]}
    for text, words in (
        ("[]", "an object of slots"),
        ('{"food": [1]}', "slot 'food': expected a list of values"),
        ('{\n"food"', r"ontology.json:2: not valid JSON"),
        ("[" * 100_000, "ontology.json: not valid JSON: nested too deeply"),
    ):
        path.write_text(text)
        with pytest.raises(BadValue, match=words):
            read_ontology(path)


def test_files_of_a_folder_are_told_apart_by_the_words_of_their_names(tmp_path):
    for name, count in (("woz_train_en", 3), ("woz_validate_en", 2), ("woz_test_en", 1)):
        written(tmp_path / f"{name}.json", *[[turn(f"{name} {n}")] for n in range(count)])
    (tmp_path / "ontology_en.json").write_text('{"food": ["thai"]}')
    parts, ontology = read_splits(tmp_path, "utf-8", 0, False)
    assert {split: len(some) for split, some in parts.items()} == {"train": 3, "validation": 2, "test": 1}
    assert ontology == {"food": ["thai"]}
    names = [Path(name) for name in ("x-train.tsv", "train.tsv", "latest.tsv", "contest_dev.tsv")]
    assert files_by_split(names) == {"train": Path("train.tsv"), "validation": Path("contest_dev.tsv")}


def test_one_file_is_split_and_no_dialogue_is_in_two_splits(tmp_path):
    path = written(tmp_path / "all.json", *[[turn(f"number {n % 20}")] for n in range(37)])
    parts, ontology = read_splits(path, "utf-8", 0, False)
    texts = {split: {one.text for one in some} for split, some in parts.items()}
    assert ontology is None and sum(map(len, parts.values())) == 37 and all(texts.values())
    assert not texts["train"] & texts["test"] and not texts["validation"] & texts["test"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match=r"expected a \.json file of dialogues"):
        read_splits(tmp_path / "empty", "utf-8", 0, False)


def test_generated_dialogues_keep_their_own_books():
    """Goals accumulate over turns, and every value that a label names belongs to its slot."""
    changed = confirmed = 0
    for dialogue in restaurants.dialogues("train", 200):
        state = {}
        for number, one in enumerate(dialogue.turns):
            changed += any(slot in state and state[slot] != value for slot, value in one.label)
            confirmed += any(len(act) == 2 for act in one.acts)
            state.update({slot: value for slot, value in one.label if slot != "request"})
            assert dict(one.state) == state
            assert all(value in (*restaurants.ONTOLOGY[slot], "dontcare") for slot, value in one.label)
            assert bool(one.system) == bool(number) and one.user
        assert set(state) == {"food", "area", "price range"}
    assert changed > 20 and confirmed > 20
    assert restaurants.dialogue("test", 3) != restaurants.dialogue("train", 3)
