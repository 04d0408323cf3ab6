"""The study is read and written: folders that are refused, yardsticks, numbers as people write them, the page."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import study
from studying.evidence import DATA, Margin, Unreadable, perplexity, read_comparison, read_yardsticks, write_yardsticks
from studying.text import gap, interval, joined, method, value, wrapped
from studying.verdict import judge

from regard_workbench.cli.main import main
from regard_workbench.comparison.engines.stopped import Stopped
from regard_workbench.tasks.measures.metrics import ACCURACY, PERPLEXITY, Metric
from regard_workbench.training.run_folder import checksum
from tests.comparison.made_up_study import CLEAR, folder, question, told, verdict_of

ROOT = Path(__file__).resolve().parents[2]
BITS = Metric("bits_per_sequence", higher_is_better=False)


def rewrite(path, **changes):
    """An outcome with other contents, as a run that ended so would have written it: with its checksum."""
    content, _ = checksum.read_json(path.read_bytes(), path)
    path.write_bytes(checksum.json_bytes({**content, **changes}))


def test_runs_older_than_the_recipe_are_refused(tmp_path):
    place = folder(tmp_path / "one", CLEAR, {})
    rewrite(place / "runs" / "dot-seed-0" / "outcome.json", steps=399)
    with pytest.raises(Unreadable, match="older than the recipe"):
        read_comparison(place, "")


def test_failed_and_non_finite_runs_are_reported_and_left_out_of_tables(tmp_path):
    place = folder(tmp_path / "one", {**CLEAR, "linear": (0.5, 0.5, 0.5)}, {})
    for name, changes in (("hard-seed-1", {"error": "RuntimeError: no"}), ("linear-seed-0", {"test": {}})):
        rewrite(place / "runs" / name / "outcome.json", **changes)
    found = judge(question(), read_comparison(place, ""))
    assert [(entry.name, len(entry.seeds)) for entry in found.everyone] == [("dot", 3), ("hard", 2)]
    text = told(found)
    assert "**Failed**: `hard` with seed 1: RuntimeError: no" in text
    assert "**No number**: `linear` with seed 0 ended without a finite accuracy" in text


def test_a_run_whose_blocks_do_not_make_its_number_is_refused(tmp_path):
    place = folder(tmp_path / "one", CLEAR, {})
    rewrite(place / "runs" / "dot-seed-0" / "outcome.json", test={"accuracy": 0.99})
    with pytest.raises(Unreadable, match="its blocks make"):
        read_comparison(place, "")


def test_runs_of_two_recipes_in_one_folder_are_refused(tmp_path):
    place = folder(tmp_path / "one", CLEAR, {})
    path = place / "runs" / "dot-seed-0" / "outcome.json"
    rewrite(path, settings={**json.loads(path.read_text())["settings"], "steps": 401})
    with pytest.raises(Unreadable, match="2 different settings"):
        read_comparison(place, "")


def test_a_list_that_says_something_else_than_the_runs_is_noticed():
    asked = question(words=f"digits --data {DATA}/a/b.txt --steps 400 --optim.lr 2e-3 --seeds 3")
    settings = {"task": "digits", "data": ["elsewhere/a/b.txt"], "steps": 400, "optim.lr": 0.002}
    assert asked.contradicted(settings) == ""
    assert "steps is 300 in its runs and '400' in the list" in asked.contradicted({**settings, "steps": 300})
    assert "data" in asked.contradicted({**settings, "data": ["elsewhere/a/c.txt"]})
    assert "task" in asked.contradicted({**settings, "task": "dates"})


def test_numbers_read_as_people_write_them():
    assert value(0.98125, ACCURACY) == "98.1 %"
    assert (value(8.1666, PERPLEXITY), value(0.00123, BITS), value(45.3, BITS)) == ("8.17", "0.0012", "45.3")
    assert interval(0.95, 1.02, ACCURACY) == "95.0–100.0 %"
    assert interval(-0.1, 2.0, BITS) == "0–2.00"
    assert (gap(0.9, 0.95, ACCURACY), gap(8.4, 8.0, PERPLEXITY)) == ("5.0 points", "5.0 %")
    assert (joined(["a"]), joined(["a", "b", "c"])) == ("a", "a, b and c")


def test_paragraphs_are_broken_and_everything_else_stays():
    long = "word " * 60
    text = wrapped(f"# {long}\n\n{long}\n\n- {long}\n- b\n\n| {long} |")
    head, paragraph, bullets, table = text.split("\n\n")
    assert max(map(len, paragraph.splitlines())) <= 120
    assert [line[:2] for line in bullets.splitlines()] == ["- ", "  ", "  ", "- "]
    assert (len(head.splitlines()), len(table.splitlines())) == (1, 1)


def test_no_line_ends_between_a_number_and_its_per_cent():
    for words in range(100, 121):
        assert "\n%" not in wrapped("x" * words + " 98.5 % and more words that follow after it")


def test_counting_letters_gives_the_perplexity_worked_out_by_hand():
    # After 0 came 1 twice, after 1 came 0 once. Witten and Bell: (count + kinds · p of the shorter) / (n + kinds).
    p0, p1 = (2 + 2 / 2) / (4 + 2), (2 + 2 / 2) / (4 + 2)
    assert math.isclose(perplexity([0, 1, 0, 1], [0, 1, 0], 0, 2), 1 / math.sqrt(p0 * p1))
    after0, after1 = (2 + 1 * p1) / (2 + 1), (1 + 1 * p0) / (1 + 1)
    assert math.isclose(perplexity([0, 1, 0, 1], [0, 1, 0], 1, 2), 1 / math.sqrt(after0 * after1))


def test_yardsticks_are_kept_beside_the_runs(tmp_path):
    write_yardsticks(tmp_path, {"task": "copy(max_length=2)"})
    (coin,) = read_yardsticks(tmp_path)
    assert coin.guess and 8 < coin.value < 16  # one or two vectors of eight bits
    write_yardsticks(tmp_path, {"task": "digits"})
    guess, nearest = read_yardsticks(tmp_path)
    assert 0.09 < guess.value < 0.12 < 0.97 < nearest.value < 1
    assert read_yardsticks(tmp_path / "nowhere") == []


def test_the_page_is_the_same_each_time_and_names_every_part(tmp_path):
    place = folder(tmp_path / "home" / "digits-attention", CLEAR, {"dot": 10.0, "hard": 20.0})
    write_yardsticks(place, {"task": "digits"})
    asked, other = question(), question("copy")
    written = []
    for name in ("a", "b"):
        study.write_page([asked, other], tmp_path / "home", tmp_path / name / "study.md")
        written.append(
            (
                (tmp_path / name / "study.md").read_text(),
                (tmp_path / name / "images" / "study-digits-attention.svg").read_bytes(),
            )
        )
    assert written[0] == written[1]
    text, picture = written[0]
    for part in ("The short answer", "How it was done", "Recognise a digit", "All mechanisms", "What this does not"):
        assert f"\n## {part}" in text
    assert "| [classify](#recognise-a-digit-which-attention) | `dot` |" in text
    assert "| ● | **`dot`** | **96.00** ± 2.48 |" in text
    assert "task:digits|model:encoder|attention:dot|seeds:0,1,2|budget:400 steps|" in text
    assert "**Unfinished**" not in text  # all runs have ended, though the comparison wrote no table
    assert "Not in this edition: `copy`." in text
    assert b"<svg" in picture and b"#ffffff" in picture


def test_margins_and_rules_on_the_page_are_those_of_the_code(tmp_path):
    found = verdict_of(tmp_path, CLEAR, {}, margin=Margin(0.5, "half a bit"))
    assert "(half a bit of accuracy)" in method([found])


@pytest.mark.slow
def test_the_script_refuses_an_empty_folder(tmp_path):
    script = [sys.executable, str(ROOT / "bench" / "study.py"), "write"]
    failed = subprocess.run(script, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert failed.returncode == 1
    assert "no comparison there has a finished run" in failed.stderr


def test_every_question_of_the_script_is_a_call_that_regard_takes(monkeypatch):
    """The command line reads it, and its plan has the settings by which `write` later knows the runs."""
    plans = []

    def compare(plan, hear, tell):
        plans.append(plan)
        raise Stopped(15)

    monkeypatch.setattr("regard_workbench.comparison.compare.compare", compare)

    for one in study.QUESTIONS:
        assert main(one.command("some/data", f"runs/{one.name}")[1:]) == 128 + 15
        assert one.contradicted(plans[-1].settings) == ""
    assert len({plan.out for plan in plans}) == len(study.QUESTIONS)


def test_a_page_says_how_many_runs_are_missing_and_takes_nobody_with_one_seed(tmp_path):
    place = folder(tmp_path / "home" / "digits-attention", CLEAR, {"dot": 10.0, "hard": 20.0})
    for seed in (1, 2):
        (place / "runs" / f"dot-seed-{seed}" / "outcome.json").unlink()
    write_yardsticks(place, {"task": "digits"})
    study.write_page([question()], tmp_path / "home", tmp_path / "study.md")
    text = (tmp_path / "study.md").read_text()
    runs = len(list((place / "runs").iterdir()))
    assert f"**Unfinished**: {runs - 2} of {runs} runs have ended. Rows with fewer seeds say so" in text
    assert "(1 of 3 seeds)" in text
    assert "**`dot`**" not in text and "the best mean (one seed)" in text


def test_the_page_in_the_repository_has_its_pictures_and_says_what_is_unfinished():
    text = (ROOT / "docs" / "study.md").read_text()
    pictures = re.findall(r"\]\((images/[^)]+)\)", text)
    assert len(pictures) >= 7
    assert not [name for name in pictures if not (ROOT / "docs" / name).is_file()]
    assert "Not in this edition" not in text
    for ended, asked in re.findall(r"\*\*Unfinished\*\*: (\d+) of (\d+) runs have ended", text):
        missing = f"{int(asked) - int(ended)} of {asked} runs of the study"
        assert missing in (ROOT / "docs" / "results.md").read_text()
