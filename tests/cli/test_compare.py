"""`regard compare` from the command line: what is asked for, wrong calls, exit codes, what goes to stdout."""

import io
import json
import signal
import sys
from pathlib import Path

import pytest
import rich.console

from regard_workbench import plugins
from regard_workbench.cli import compare as verb
from regard_workbench.cli.main import main
from regard_workbench.comparison import compare as module
from regard_workbench.comparison.columns import NAMED
from regard_workbench.comparison.engines.engine import Event
from regard_workbench.comparison.engines.stopped import ClusterLost, Stopped
from regard_workbench.comparison.job import Contestant, Job
from regard_workbench.comparison.plan import make_plan
from regard_workbench.training.run_folder.durable import StorageFailed
from tests.comparison.made_up import comparison, outcome
from tests.comparison.registered import STRANGERS, strangers_registered  # noqa: F401


def run(*arguments):
    try:
        return main(["compare", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def asked(monkeypatch):
    """What `compare` is asked for; it answers with numbers nobody measured."""
    plans = []

    def answer(plan, hear, tell):
        plans.append(plan)
        job = Job(Contestant("encoder"), 2, {"task": "digits"}, "folder")
        for news in ("began", "step", "again", "done", "failed"):
            hear(Event(job, news, "words", 7))
        tell("a word")
        return comparison()

    monkeypatch.setattr(module, "compare", answer)
    return plans


def test_without_arguments_the_users_table_is_made(asked, capsys):
    assert run() == 0
    (plan,) = asked
    assert plan.settings == {"task": "digits"}
    assert plan.models == ["static-transformer", "dynamic-transformer", "lstm-attention"]
    assert (plan.attentions, plan.seeds, plan.engine, plan.trials) == ([], [0, 1, 2], "local", 0)
    assert (plan.match, plan.target, plan.columns) == ("parameters", None, ("speed", "validation", "test"))
    out, err = capsys.readouterr()
    for word in (
        "convergence speed",
        "step/s",
        "more columns: --columns all",
        "validation",
        "test",
        "±",
        "static-transformer",
        "report:",
    ):
        assert word in out
    for word in (
        "begins  encoder, seed 2",
        "again   encoder, seed 2: words",
        "FAILED  encoder, seed 2: words",
        "a word",
    ):
        assert word in err


def test_every_option_reaches_the_plan(asked, tmp_path):
    assert (
        run(
            "dates",
            "--models",
            "seq2seq,transformer(dim=16, layers=1)",
            "--attention",
            "global,local(window=3)",
            "--seeds",
            "0,7",
            "--sweep",
            4,
            "--space",
            "optim.lr=1e-4..1e-2",
            "--out",
            tmp_path,
            "--engine",
            "ray",
            "--address",
            "auto",
            "--workers",
            3,
            "--threads",
            2,
            "--beam",
            5,
            "--budget",
            "90s",
            "--optim.lr",
            "3e-4",
            "--batch_size",
            8,
            "--no-graph",
            "--device",
            "cpu",
        )
        == 0
    )
    (plan,) = asked
    assert plan.models == ["seq2seq", "transformer(dim=16, layers=1)"]
    assert plan.attentions == ["global", "local(window=3)"]
    assert plan.settings == {
        "task": "dates",
        "budget": "90s",
        "optim.lr": "3e-4",
        "batch_size": "8",
        "graph": False,
        "device": "cpu",
    }
    assert (plan.seeds, plan.trials, plan.space) == ([0, 7], 4, "optim.lr=1e-4..1e-2")
    assert (plan.engine, plan.address, plan.workers, plan.threads, plan.beam) == ("ray", "auto", 3, 2, 5)
    assert plan.out == tmp_path


def test_a_task_without_models_is_compared_with_its_recipes(asked):
    assert run("dates") == 0 and run("digits", "--attention", "global,linear") == 0
    assert [plan.models for plan in asked] == [["seq2seq"], ["encoder"]]


def test_match_target_and_columns_reach_the_plan_and_only_match_changes_the_folder(asked):
    for arguments in (
        ["--models", "encoder,lstm-attention"],
        ["--models", "encoder,lstm-attention", "--target", "95%", "--columns", "test,steps_to_target,test.loss"],
        ["--models", "encoder,lstm-attention", "--match", "flops"],
        ["--match", "none"],
    ):
        assert run("digits", *arguments) == 0
    first, second, third, fourth = asked
    assert [plan.match for plan in asked] == [None, None, "flops", None]
    assert second.target == 0.95 and second.columns == ("test", "steps-to-target", "test.loss")
    assert first.out == second.out != third.out and fourth.out != make_plan({"task": "digits"}).out


def test_the_help_names_every_column(capsys):
    run("--help")
    text = "".join(capsys.readouterr().out.split())  # lines break at hyphens, too
    listed = text.partition("orall:")[2].partition("validation.METRIC")[0]
    assert [name for name in NAMED if name not in listed] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "sped"], "Did you mean 'speed'?"),
        (["--columns", ","], "columns: expected names joined by commas"),
        (["--columns", "test."], "columns: there is no 'test.'"),
        (["--target", "95"], "target: the validation accuracy to reach is a number from 0 to 1"),
        (["--target", "nan"], "target: the validation accuracy"),
        (["--match", "weights"], "weights"),
    ],
)
def test_a_wrong_column_target_or_match_is_refused_before_anything_runs(asked, capsys, arguments, message):
    assert run("digits", *arguments) == 2
    assert message in capsys.readouterr().err and not asked


def test_a_file_gives_settings_and_flags_win(asked, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "task: digits\nmodel: encoder(dim=8)\nattention: null\nseed: 3\nout: x\nsteps: 7\noptim:\n  lr: 1e-2\n"
    )
    assert run("--config", tmp_path / "c.yaml", "--steps", 9) == 0
    (plan,) = asked
    assert plan.settings == {"task": "digits", "steps": "9", "optim.lr": "1e-2"}
    assert plan.models == ["encoder(dim=8)"] and plan.attentions == [] and plan.seeds == [0, 1, 2]


def test_the_same_question_has_the_same_folder_and_another_one_another(asked):
    run("digits", "--steps", 5)
    run("digits", "--steps", 5, "--workers", 1)
    run("digits", "--steps", 6)
    run("digits(order=pixels)", "--steps", 5)
    folders = [plan.out for plan in asked]
    assert folders[0] == folders[1] and len(set(folders)) == 3
    assert all(folder.parent == Path("runs") and folder.name.startswith("compare-digits-") for folder in folders)


def test_rows_go_to_stdout_as_json(asked, capsys):
    assert run("--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == ["static-transformer", "dynamic-transformer", "lstm-attention"]
    for row in rows:
        for key in (
            "model",
            "attention",
            "task",
            "seeds",
            "parameters",
            "steps_per_second",
            "validation",
            "test",
            "peak_memory_mib",
            "signature",
        ):
            assert key in row


def test_a_failed_run_shows_in_the_table_and_in_the_exit_code(monkeypatch, capsys):
    runs = [outcome("static-transformer", 0, 0.9), outcome("lstm-attention", 0, 0.9, error="no luck", blocks=[])]
    made = comparison(runs, [Contestant("static-transformer"), Contestant("lstm-attention")], seeds=[0])
    monkeypatch.setattr(module, "compare", lambda *_: made)
    assert run() == 1
    out = capsys.readouterr().out
    assert "failed" in out and "no luck" in out and "90.0 %" in out


def test_limits_reach_the_plan_and_no_folder_depends_on_them(asked):
    for arguments in ([], ["--timeout", "90s", "--heartbeat", "never"], ["--timeout", "5 min", "--heartbeat", "20"]):
        assert run(*arguments) == 0
    assert [(plan.timeout, plan.heartbeat) for plan in asked] == [(None, 1800), (90, None), (300, 20)]
    assert len({plan.out for plan in asked}) == 1


def test_runs_that_had_to_be_killed_are_named(monkeypatch, capsys):
    def stopped(*_):
        raise Stopped(signal.SIGINT, [Job(Contestant("encoder"), 2, {"task": "digits"}, "folder")])

    monkeypatch.setattr(module, "compare", stopped)
    assert run() == 130
    err = capsys.readouterr().err
    assert "encoder, seed 2 did not stop when asked and was killed" in err and "the other runs are saved" in err


def test_a_lost_cluster_is_reported_as_a_failure(monkeypatch, capsys):
    def lost(*_):
        raise ClusterLost("engine: the Ray cluster is lost: its head is gone.")

    monkeypatch.setattr(module, "compare", lost)
    assert run() == 1
    assert capsys.readouterr().err == "regard compare: engine: the Ray cluster is lost: its head is gone.\n"


def test_a_signal_gives_its_exit_code_and_the_command_to_resume(monkeypatch, capsys):
    def stopped(*_):
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(module, "compare", stopped)
    monkeypatch.setattr(sys, "argv", ["regard", "compare", "--models", "a b"])
    assert run() == 143
    assert "SIGTERM" in (err := capsys.readouterr().err) and "regard compare --models 'a b'" in err


def test_a_full_disk_is_reported_as_a_failure(monkeypatch, capsys):
    def full(*_):
        raise StorageFailed("cannot write x: the disk is full.")

    monkeypatch.setattr(module, "compare", full)
    assert run() == 1
    assert "the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digts"], "Did you mean 'digits'?"),
        (["--model", "encoder"], "Did you mean '--models'?"),
        (["--seed", "3"], "Did you mean '--seeds'?"),
        (["--models", "encodr"], "Did you mean 'encoder'?"),
        (["--models", "encoder", "--attention", "locl"], "Did you mean 'local'?"),
        (["--models", "encoder(dmi=3)"], "Did you mean 'dim'?"),
        (["--models", ""], "--models: expected names"),
        (["--models", ","], "--models: expected names"),
        (["--attention", " , "], "--attention: expected names"),
        (["--seeds", "0"], "--seeds: expected how many"),
        (["--seeds=-1"], "--seeds: expected how many"),
        (["--seeds", ""], "--seeds: expected how many"),
        (["--steps", "few"], "steps: expected a whole number"),
        (["--budget", "5 bananas"], "budget: expected"),
        (["--steps", "5", "--budget", "5s"], "--steps, --budget: expected one"),
        (["--sweep", "-1"], "--sweep: expected at least 0"),
        (["--workers", "0"], "--workers: expected at least 1"),
        (["--beam", "5"], "--beam: evaluating digits generates no text"),
        (["--beam", "0"], "--beam: expected at least 1"),
        (["--timeout", "soon"], "--timeout: expected a time"),
        (["--heartbeat", "0"], "--heartbeat: expected a time"),
        (["--engine", "rya"], "Did you mean 'ray'?"),
        (["--address", "auto"], "only --engine ray"),
        (["--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--out", "taken.txt"], "taken.txt is a file"),
        (["--out", "taken.txt/deeper"], "cannot write in taken.txt/deeper: Not a directory"),
    ],
)
def test_a_wrong_call_exits_with_two_and_helps(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.txt").write_text("")
    monkeypatch.setattr(module.LocalEngine, "run", lambda *_: pytest.fail("it ran"))
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*/runs"))


def test_the_help_ends_in_real_commands(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    for option in (
        "--models",
        "--attention",
        "--seeds",
        "--sweep",
        "--budget",
        "--engine",
        "--optim.lr",
        "--json",
        "--beam",
    ):
        assert option in text
    assert "examples:\n  regard compare\n" in text and text.rstrip().endswith("--out runs/copy-race")


def test_plugin_files_are_loaded_wherever_use_comes_in_the_command(capsys, tmp_path):
    mark = tmp_path / "mark.py"
    mark.write_text("import sys\nsys.modules['regard_test_mark'] = __name__\n")
    for arguments in (["--use", str(mark), "list"], ["list", f"--use={mark}"]):
        sys.modules.pop("regard_test_mark", None)
        assert main(arguments) == 0
        assert ("regard_test_mark" in sys.modules) == (arguments[0] == "--use")  # once is enough
    assert str(mark) in plugins.loaded()
    plugins._LOADED.pop(str(mark))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("import nowhere_at_all", "No module named"),
        ("1 +", "SyntaxError"),
        ("x = 1 / 0", "line 1"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(capsys, tmp_path, content, said):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    assert main(["--use", str(path), "list"]) == 2
    err = capsys.readouterr().err
    assert "--use" in err and said in err
    assert main(["list", "--use"]) == 2


def test_the_plan_carries_the_users_files(asked):
    assert main(["compare", "toy", "--use", STRANGERS]) == 0
    assert STRANGERS in asked[0].use


def test_a_terminal_shows_a_bar_for_each_run_and_takes_it_down(monkeypatch):
    shown = io.StringIO()
    real = rich.console.Console
    monkeypatch.setattr(rich.console, "Console", lambda **_: real(file=shown, force_terminal=True, width=90))
    steps = Job(Contestant("encoder[bold]"), 1, {"task": "digits", "steps": 50}, "a")
    seconds = Job(Contestant("decoder"), 2, {"task": "digits", "budget": "9s"}, "b/trial-003", test=False)
    with verb.ProgressDisplay() as watch:
        for job in (steps, seconds):
            watch.on_event(Event(job, "began"))
            watch.on_event(Event(job, "step", step=20))
        assert watch.progress is not None and watch.progress.live.is_started
        assert [task.total for task in watch.progress.tasks] == [50, None]
        watch.progress.refresh()
        watch.on_event(Event(steps, "done", "50 steps"))
        watch.on_event(Event(seconds, "failed", "no luck"))
        assert not watch.progress.live.is_started
        watch.tell("writing")
    text = shown.getvalue()
    for said in ("encoder[bold], seed 1", "20/50", "done    encoder[bold], seed 1: 50 steps", "writing"):
        assert said in text
    assert "FAILED  decoder, seed 2, trial-003: no luck" in text
