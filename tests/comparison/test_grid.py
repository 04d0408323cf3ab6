"""Models × attentions × seeds: who takes part, who is left out and why, which job lives where."""

from pathlib import Path

import pytest

from regard.errors import BadValue
from regard.nn import MECHANISMS
from regard_workbench import models, tasks
from regard_workbench.comparison.grid import compose, jobs, slug
from regard_workbench.comparison.job import Contestant
from regard_workbench.comparison.plan import read_seeds, usual_models
from regard_workbench.models import MODELS
from tests.comparison.registered import strangers_registered  # noqa: F401

SMALL = "encoder(dim=8, layers=1, num_heads=2)"
SMALL_DECODER = "decoder(dim=8, layers=1, num_heads=2)"


def labels(grid):
    return [contestant.label for contestant in grid.contestants]


def test_the_grid_is_the_product_in_the_order_it_was_asked_for():
    grid = compose({"task": "digits"}, [SMALL, "lstm-attention(dim=8)"], ["global", "local(window=3)"])
    assert labels(grid) == [
        f"{SMALL} · global",
        f"{SMALL} · local(window=3)",
        "lstm-attention(dim=8) · global",
        "lstm-attention(dim=8) · local(window=3)",
    ]
    assert grid.left_out == []


def test_without_attentions_each_model_has_its_own():
    grid = compose({"task": "digits"}, [SMALL, SMALL, "static-transformer(dim=8, num_heads=2)"])
    assert grid.contestants == [Contestant(SMALL), Contestant("static-transformer(dim=8, num_heads=2)")]


def test_settings_are_checked_and_kept_as_values():
    grid = compose({"task": "digits", "steps": "1e2", "optim.lr": "3e-4", "batch_size": None}, [SMALL])
    assert grid.settings == {"task": "digits", "steps": 100, "optim.lr": 3e-4}


def test_all_models_are_those_for_the_usual_question_of_the_task():
    grid = compose({"task": "dates(validation_size=2, test_size=2)"}, ["all"])
    problem = tasks.build("dates").problem
    assert labels(grid) == [name for name in sorted(MODELS.names()) if models.fits(MODELS[name], problem)]
    assert {"bridge", "gla", "seq2seq", "transformer"} <= set(labels(grid))
    assert grid.left_out == []


def test_all_attentions_of_a_decoder_are_those_that_can_be_causal():
    grid = compose({"task": "copy(max_length=3)"}, [SMALL_DECODER], ["all"])
    able = {name for name in MECHANISMS.names() if MECHANISMS[name].causal != "no"}
    assert {contestant.attention.partition("(")[0] for contestant in grid.contestants} == able
    left = dict(grid.left_out)
    assert set(left) == {f"{SMALL_DECODER} · {name}" for name in MECHANISMS.names() if name not in able}
    for why in left.values():
        assert "cannot be causal" in why and "These can" not in why


def test_cells_that_make_no_sense_are_left_out_with_their_reasons():
    grid = compose({"task": "copy(max_length=3)"}, ["ntm(slots=8, width=4, hidden=8)", "decoder(dim=8)"], ["causal"])
    assert labels(grid) == ["decoder(dim=8) · causal"]
    assert grid.left_out == [
        (
            "ntm(slots=8, width=4, hidden=8) · causal",
            "attention: ntm has no place for another attention; leave --attention out.",
        )
    ]


def test_a_model_for_another_task_is_left_out_among_others():
    grid = compose({"task": "digits"}, ["seq2seq", SMALL])
    assert labels(grid) == [SMALL]
    assert grid.left_out == [
        ("seq2seq", "model: seq2seq cannot answer with the class of an example, which this task asks for.")
    ]


def test_models_that_would_be_asked_different_questions_are_not_compared(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("A small boat came in. Nobody knew why it came. The old man waited for it.\n" * 40)
    settings = {"task": "language(context=23)", "data": str(book)}
    grid = compose(settings, ["decoder(dim=8, layers=1, num_heads=2)", SMALL])
    assert labels(grid) == ["decoder(dim=8, layers=1, num_heads=2)"]
    ((label, why),) = grid.left_out
    assert label == SMALL and "hidden tokens" in why and "next token" in why


@pytest.mark.parametrize(
    ("task", "models", "attentions", "said"),
    [
        ("digits", ["seq2seq"], [], "model: seq2seq cannot answer with the class of an example"),
        ("copy", ["ntm"], ["global"], "no place for another attention"),
        ("copy", [SMALL_DECODER], ["static-memory"], "cannot be causal"),
        ("digits", [SMALL], ["local(windw=3)"], "Did you mean 'window'?"),
        ("digits", ["encoder(dmi=8)"], [], "Did you mean 'dim'?"),
        ("digits", ["encoder(dim=8, num_heads=3)"], [], "cannot be shared equally"),
        ("toy", ["refuses"], [], "not to be had"),
        ("digts", [SMALL], [], "Did you mean 'digits'?"),
        ("digits", [], [], "at least one"),
    ],
)
def test_a_single_cell_that_cannot_work_is_an_error(task, models, attentions, said):
    with pytest.raises(BadValue) as error:
        compose({"task": task}, models, attentions)
    assert said in str(error.value) and "mistakes" not in str(error.value)


def test_an_empty_grid_names_every_reason():
    with pytest.raises(BadValue) as error:
        compose({"task": "digits"}, ["seq2seq", "decoder"])
    text = str(error.value)
    assert "none of the combinations" in text
    assert "seq2seq: model: seq2seq cannot answer with" in text
    assert "decoder: model: decoder cannot answer with" in text


def test_unknown_names_are_mistakes_however_many_are_right_and_come_together():
    with pytest.raises(BadValue, match="4 mistakes") as error:
        compose({"task": "digits", "steps": "few"}, [SMALL, "encodr"], ["global", "locl(window=3)", "global("])
    for said in ("Did you mean 'encoder'?", "Did you mean 'local'?", "steps: expected a whole number", "'global('"):
        assert said in str(error.value)


def test_a_beam_is_refused_where_nothing_is_written():
    with pytest.raises(BadValue, match="--beam"):
        compose({"task": "digits"}, [SMALL], beam=3)
    assert compose({"task": "dates(validation_size=2, test_size=2)"}, ["seq2seq(dim=8)"], beam=3).contestants


def test_a_model_that_fails_in_its_own_way_takes_part_and_fails_by_itself():
    assert labels(compose({"task": "toy"}, ["toy-net", "falls"])) == ["toy-net", "falls"]


def test_trying_a_cell_draws_nothing_from_the_callers_generator():
    import torch

    before = torch.get_rng_state()
    compose({"task": "digits"}, [SMALL])
    assert torch.equal(torch.get_rng_state(), before)


def test_tuned_settings_of_a_model_reach_its_runs(tmp_path):
    grid = compose({"task": "toy"}, ["toy-net"])
    (job,) = jobs(grid, [0], tmp_path, chosen={"toy-net": {"model": "toy-net(dim=5)"}})
    assert job.settings["model"] == "toy-net(dim=5)" and job.contestant.model == "toy-net"


def test_each_contestant_and_seed_is_a_job_with_a_folder_of_its_own(tmp_path):
    grid = compose({"task": "toy", "steps": 3}, ["toy-net", "toy-net(dim=5)"])
    made = jobs(grid, [0, 11], tmp_path, chosen={"toy-net": {"optim.lr": 0.5}}, threads=3, use=("a.py",))
    assert [(job.contestant.model, job.seed) for job in made] == [
        ("toy-net", 0),
        ("toy-net(dim=5)", 0),
        ("toy-net", 11),
        ("toy-net(dim=5)", 11),
    ]
    assert made[2].settings == {"task": "toy", "steps": 3, "optim.lr": 0.5, "model": "toy-net", "seed": 11}
    assert made[3].settings == {"task": "toy", "steps": 3, "model": "toy-net(dim=5)", "seed": 11}
    assert made[0].folder == str(tmp_path / "runs" / "toy-net-seed-0")
    assert len({job.folder for job in made}) == 4
    assert all(Path(job.folder).parent == tmp_path / "runs" for job in made)
    assert {(job.threads, job.use, job.test) for job in made} == {(3, ("a.py",), True)}


def test_slugs_are_readable_plain_and_different():
    contestants = [
        Contestant("decoder"),
        Contestant("decoder(layers=4)"),
        Contestant("decoder(layers=-4)"),
        Contestant("decoder", "local(window=4)"),
        Contestant("decoder", "local"),
        Contestant("decoder-local"),
        Contestant("Decoder"),
        Contestant("x" * 300),
        Contestant("x" * 301),
        Contestant("../../etc"),
        Contestant("模型(a=1)"),
    ]
    found = [slug(contestant) for contestant in contestants]
    assert len(set(found)) == len(found)
    assert found[0] == "decoder" and found[4] == "decoder+local" and found[1].startswith("decoder-layers-4-")
    for name in found:
        assert len(name) <= 80 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789+-") and name[0] not in "-+"


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("3", [0, 1, 2]), ("1", [0]), ("0,7,11", [0, 7, 11]), ("7,", [7]), ("0,", [0]), (" 2 , 1", [2, 1])],
)
def test_seeds_are_a_number_of_them_or_a_list(given, seeds):
    assert read_seeds(given) == seeds


@pytest.mark.parametrize("given", ["0", "-1", "", ",", "a", "1.5", "0,-1", "3,3", "1e9", str(2**64) + ",", "2000000"])
def test_seeds_that_make_no_sense_are_refused(given):
    with pytest.raises(BadValue, match="seeds: "):
        read_seeds(given)


def test_the_usual_models_are_the_users_table_on_digits_and_the_recipes_elsewhere():
    assert usual_models("digits", []) == ["static-transformer", "dynamic-transformer", "lstm-attention"]
    assert usual_models("digits(order=pixels)", []) == usual_models("digits", [])
    assert usual_models("digits", ["global"]) == ["encoder"]
    assert usual_models("dates", []) == ["seq2seq"]
