"""What a comparison writes names no folder of its maker; its commands still work in the folder they were typed in."""

import dataclasses
import shlex

import pytest

from regard_workbench.comparison.compare import write
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.shareable import shareable, without_folders
from tests.comparison import made_up


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A home folder with a project in it, both with spaces in their names; the project is the current folder."""
    home = tmp_path / "anna maria"
    here = home / "secret study"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return here


@pytest.mark.parametrize(
    ("typed", "shared"),
    [
        ("regard compare dates --data {here}/a.tsv", "regard compare dates --data a.tsv"),
        ("regard train x --data '{here}/my files/a b.tsv'", "regard train x --data 'my files/a b.tsv'"),
        ("--data={here}/a.tsv,{here}/b/c.tsv", "--data=a.tsv,b/c.tsv"),
        ("tag(text='{here}/t.txt', clues=1)", "tag(text='t.txt', clues=1)"),
        ("init_from:{here}/runs/words|lr:0.001", "init_from:runs/words|lr:0.001"),
        ("--data {home}/other/a.tsv", "--data a.tsv"),
        ("--data {home}", "--data ~"),
        ("cannot read /srv/lab/anna/b.tsv: Permission denied.", "cannot read b.tsv: Permission denied."),
        ("--out {here}", "--out ~/secret study"),
        ("regard compare --data data/a.tsv,../b.tsv", "regard compare --data data/a.tsv,../b.tsv"),
        *((text, text) for text in ("see https://example.org/a/b.html", "3/4/5, and/or/not")),
        ("hf:org/name", "hf:org/name"),
    ],
)
def test_a_path_is_relative_to_the_current_folder_or_a_name(project, typed, shared):
    places = {"here": project, "home": project.parent}
    assert without_folders(typed.format(**places)) == shared.format(**places)


def test_no_file_of_a_comparison_holds_a_folder_of_its_maker(project):
    first, second, _ = made_up.NAMES
    origin, data = f"{project}/runs/words", f"{project.parent}/lab/a b.tsv"
    contestants = [Contestant(first, None, origin), Contestant(second, "global", str(project / "w.txt"))]
    runs = []
    for seed in (0, 1):
        for one in contestants:
            command = shlex.join(["regard", "train", "digits", "--data", data, "--seed", str(seed)])
            given = {"init_from": one.init_from, "command": command, "folder": str(project / "runs" / str(seed))}
            runs.append(made_up.outcome(one.model, seed, 0.9 + 0.01 * seed, one.attention, **given))
    failed = f"BadValue: cannot read '{data}' or {project}/w.txt"
    runs.append(dataclasses.replace(runs[1], seed=2, error=failed))
    comparison = made_up.comparison(
        runs,
        contestants,
        command=f"regard compare digits --init-from scratch,{origin} --out '{project}/out'",
        left_out=[("ntm", f"{project}/w.txt is missing")],
        costs={contestants[0].label: made_up.cost(3.0)},
        out=project / "out",
    )
    (project / "out").mkdir()
    write(comparison)
    written = [path for path in (project / "out").rglob("*") if path.is_file()]
    assert {"report.html", "results.json", "results.csv", "results.tex", "differences.json"} <= {
        p.name for p in written
    }
    for path in written:
        content = path.read_bytes().decode("utf-8", "replace")
        assert "anna" not in content and "secret" not in content, path
    report = (project / "out" / "report.html").read_text()
    assert "from runs/words" in report and "--init-from scratch,runs/words" in report and "w.txt" in report
    assert comparison.outcomes[0].init_from == origin  # what is in memory keeps its paths


def test_contestants_that_only_folders_tell_apart_stay_apart(project):
    """Runs are looked up by their contestant: with one name for two, each would have the runs of both."""
    model = made_up.NAMES[0]
    contestants = [Contestant(model, None, origin) for origin in ("/srv/a/words", "/srv/b/words", "words")]
    scores = (0.5, 0.7, 0.9)
    runs = [
        made_up.outcome(model, 0, score, init_from=contestant.init_from)
        for contestant, score in zip(contestants, scores, strict=True)
    ]
    costs = {contestant.label: made_up.cost(3.0 + at) for at, contestant in enumerate(contestants)}
    shared = shareable(made_up.comparison(runs, contestants, costs=costs))
    assert [one.init_from for one in shared.contestants] == ["words", "words (2)", "words (3)"]
    rows = shared.rows
    assert [row["test"]["accuracy"]["mean"] for row in rows] == list(scores)
    assert [row["steps_per_second"] for row in rows] == [3.0, 4.0, 5.0]
