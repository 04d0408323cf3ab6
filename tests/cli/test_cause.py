"""`regard cause` on a small Hugging Face folder and on runs of ours."""

import json

import pytest

from tests.cli.trained import answered, called

pytest.importorskip("transformers")

from tests.viewer import pretrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("cause")
    pretrained.save("gpt2", home / "gpt2")
    pretrained.save("bert", home / "bert")
    return home


TEXTS = ("--text", "the cat sat on the mat", "--against", "the cat sat on the dog")  # it says the last word again


def test_heads_are_patched_by_default_and_drawn(capsys, folder):
    figure = folder / "heads.png"
    found = answered(capsys, "cause", folder / "gpt2", *TEXTS, "--figure", figure)
    assert found["kind"] == "patch" and found["at"] == "heads" and len(found["values"]) == len(found["names"])
    assert figure.read_bytes().startswith(b"\x89PNG")
    code, out, _ = called(capsys, "cause", folder / "gpt2", *TEXTS, "--device", "cpu")
    assert code == 0 and "recovered" in out and "<" not in out.splitlines()[0][:1]


def test_two_texts_with_the_same_answer_have_no_shares(capsys, folder):
    texts = (*TEXTS[:2], "--against", "the dog sat on the mat")
    found = answered(capsys, "cause", folder / "gpt2", *texts)
    assert "same answer" in found["doubt"] and {one for row in found["recovered"] for one in row} == {None}
    code, out, _ = called(capsys, "cause", folder / "gpt2", *texts, "--device", "cpu")
    assert code == 0 and "recovered" not in out and "both inputs have the same answer" in out


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((*TEXTS, "--by", "layers"), "patch"),
        ((*TEXTS, "--by", "paths", "--measure", "loss"), "patch"),
        ((*TEXTS, "--by", "attention", "--positions", "all"), "patch"),
        (TEXTS[:2], "attributions"),
        ((*TEXTS[:2], "--by", "lens"), "lens"),
        ((*TEXTS[:2], "--by", "contributions", "--answer", "3", "--other", "5"), "contributions"),
        ((*TEXTS[:2], "--by", "faithfulness"), "faithfulness"),
    ],
)
def test_everything_is_plain_data(capsys, folder, arguments, kind):
    assert answered(capsys, "cause", folder / "gpt2", *arguments)["kind"] == kind


def test_a_model_without_logits_is_measured_by_the_likeness_of_its_output(capsys, folder):
    found = answered(capsys, "cause", folder / "bert", *TEXTS)
    assert found["measured"] == "cosine of the mean row with that for this input" and found["clean"] == pytest.approx(1)
    code, _, err = called(capsys, "cause", folder / "bert", *TEXTS[:2], "--by", "lens", "--device", "cpu")
    assert code == 2 and "no logits" in err


def test_wrong_calls_say_what_to_do(capsys, folder):
    for arguments, words in [
        ((*TEXTS[:2], "--by", "heads"), "Add --against"),
        ((*TEXTS, "--by", "lens"), "Leave --against out"),
        ((*TEXTS, "--by", "head"), "Did you mean"),
        ((*TEXTS, "--positions", "some"), "--positions"),
        ((*TEXTS, "--figure", "heads.gif"), "--figure"),
        ((*TEXTS, "--answer", "no such token"), "--answer"),
        ((*TEXTS[:3], "the dog sat"), "as many tokens as this input, 6, got 3"),
    ]:
        code, out, err = called(capsys, "cause", folder / "gpt2", *arguments, "--device", "cpu")
        assert code == 2 and out == "" and words in err, (arguments, err)


def test_a_run_of_ours_is_explained(capsys, runs):
    found = answered(capsys, "cause", runs["digits"])
    assert found["kind"] == "attributions" and json.dumps(found)
    found = answered(capsys, "cause", runs["dates"], "--text", "3rd of May, 1979", "--against", "4th of May, 1979")
    assert found["kind"] == "patch"
