"""The contents of a checkpoint are validated before the loop or a kernel uses them."""

import hashlib
import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import RegardError
from regard_workbench.cli.main import main
from regard_workbench.training import train
from regard_workbench.training.loading import load
from regard_workbench.training.run_folder import checkpoints, schema
from regard_workbench.training.state import RandomState
from tests.training.toy import assert_same

LAST = "checkpoints/step-00000004"


@pytest.fixture(scope="module", params=["adamw", "rmsprop"])
def made(tmp_path_factory, request):
    run = tmp_path_factory.mktemp("made") / "run"
    settings = {"task": "toy", "steps": 4, "save_every": 2, "device": "cpu", "out": str(run)}
    train({**settings, "optim.optimizer": request.param}, tell=lambda text: None)
    return run


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def update_manifest(folder):
    """Make the manifest match the files, as for a run changed on purpose."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def change_tensors(run, file, change):
    path = run / LAST / f"{file}.safetensors"
    tensors = load_file(path)
    for name in list(tensors):
        change(tensors, name)
    save_file(tensors, path)
    update_manifest(run / LAST)


def change_state(run, change):
    path = run / LAST / "state.json"
    state = json.loads(path.read_text())
    change(state)
    path.write_text(json.dumps(state))
    update_manifest(run / LAST)


def set_to(make, only=""):
    def change(tensors, name):
        if only in name:
            tensors[name] = make(tensors[name])

    return change


@pytest.mark.parametrize("size", [0, 1, 3, 5_000, 1_000_003])
def test_optimiser_tensors_of_another_size_are_refused_before_a_kernel_sees_them(run, size):
    """These once corrupted the heap: the fused kernel reads as many elements as the parameter has."""
    averages = ("exp_avg", "exp_avg_sq", "square_avg", "momentum_buffer")

    def change(tensors, name):
        if name.endswith(averages):
            tensors[name] = torch.zeros(size)

    change_tensors(run, "optimizer", change)
    with pytest.raises(RegardError, match=r"resume: .*expected the shape"):
        train({"steps": 6}, resume=str(run), tell=lambda text: None)


WRONG_TENSORS = {
    "integers": lambda tensor: torch.zeros(tensor.shape, dtype=torch.int64),
    "not a number": lambda tensor: torch.full_like(tensor, float("nan")),
    "infinite": lambda tensor: torch.full_like(tensor, float("inf")),
    "other shape": lambda tensor: torch.zeros(3, 5),
    "empty": lambda tensor: tensor.flatten()[:0].clone(),
}


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
def test_a_wrong_tensor_of_the_optimiser_is_refused(run, wrong):
    change_tensors(run, "optimizer", set_to(WRONG_TENSORS[wrong], only="mix.weight:"))
    with pytest.raises(RegardError, match=r"mix\.weight"):
        train({"steps": 6}, resume=str(run), tell=lambda text: None)


def test_a_missing_a_negative_and_an_unknown_piece_of_the_optimiser_are_refused(run, made):
    square = "exp_avg_sq" if "adamw" in (made / "config.yaml").read_text() else "square_avg"
    changes = {
        "a complete .* state": lambda tensors, name: (
            tensors.pop(name) if name == f"head.logits.bias:{square}" else None
        ),
        "below 0": set_to(lambda tensor: tensor - 1, only=f"head.logits.bias:{square}"),
        "which this model does not have": lambda tensors, name: tensors.update({"other:step": torch.ones(())}),
        "one of step": lambda tensors, name: tensors.update({"head.logits.bias:evil": torch.ones(3)}),
        "number of steps": set_to(lambda tensor: -torch.ones(()), only="head.logits.bias:step"),
    }
    for words, change in changes.items():
        shutil.rmtree(run)
        shutil.copytree(made, run)
        change_tensors(run, "optimizer", change)
        with pytest.raises(RegardError, match=words):
            train({"steps": 6}, resume=str(run), tell=lambda text: None)


@pytest.mark.parametrize("wrong", WRONG_TENSORS)
def test_a_wrong_weight_is_refused_by_every_reader(run, wrong):
    change_tensors(run, "model", set_to(WRONG_TENSORS[wrong], only="head.logits.weight"))
    with pytest.raises(RegardError, match=r"head\.logits\.weight"):
        load(run, device="cpu", checkpoint="last", tell=lambda text: None)
    with pytest.raises(RegardError, match=r"head\.logits\.weight"):
        train({"steps": 6}, resume=str(run), tell=lambda text: None)


@pytest.mark.parametrize("name", ["torch", "python", "numpy"])
@pytest.mark.parametrize("wrong", ["other shape", "empty", "integers", "large"])
def test_a_wrong_random_state_is_refused(run, name, wrong):
    make = {**WRONG_TENSORS, "large": lambda tensor: torch.full((tensor.numel(),), 2**40)}[wrong]
    if (name, wrong) in (("python", "integers"), ("numpy", "integers")):
        make = lambda tensor: torch.zeros(tensor.shape)  # noqa: E731 (floats instead of integers)
    change_tensors(run, "random", lambda tensors, key: tensors.update({key: make(tensors[key])} if key == name else {}))
    with pytest.raises(RegardError, match="random"):
        train({"steps": 6}, resume=str(run), tell=lambda text: None)


def test_a_random_state_of_noise_is_refused_or_used_without_a_crash():
    tensors, plain = RandomState.now().pack()
    own = torch.Generator().manual_seed(0)
    for _ in range(20):
        noise = torch.randint(0, 256, tensors["torch"].shape, generator=own, dtype=torch.uint8)
        try:
            RandomState.unpack({**tensors, "torch": noise}, plain).restore()
        except RegardError:
            continue
    torch.manual_seed(0)
    assert torch.isfinite(torch.randn(7)).all()


def paths(value, path=()):
    """The path of keys to every value in JSON data."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:3]):
            yield from paths(inner, (*path, number))


VALUES = [None, -1, 0, 1, 10**30, 1.5, float("nan"), "", "x", "\0", [], {}, [[]], True, "a" * 10_000, {"a": {"b": []}}]


def changed_at_random(state, own):
    path = own.choice([path for path in paths(state) if path])
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if own.random() < 0.1:
        del inner[path[-1]]
    else:
        inner[path[-1]] = own.choice(VALUES)
    return path


def assert_no_traceback(code, err):
    assert "Traceback" not in err
    assert code in (0, 1, 2), err


@pytest.mark.parametrize("seed", range(24))
def test_a_state_changed_anywhere_gives_an_answer_or_an_error(run, capsys, seed):
    own = random.Random(seed)
    change_state(run, lambda state: changed_at_random(state, own))
    for words in (["evaluate", run, "--limit", 3], ["train", "--resume", run, "--steps", 5]):
        code = main(list(map(str, words)))
        assert_no_traceback(code, capsys.readouterr().err)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(24, 600))
def test_a_state_changed_anywhere_gives_an_answer_or_an_error_many(run, capsys, seed):
    test_a_state_changed_anywhere_gives_an_answer_or_an_error(run, capsys, seed)


def changed_tensor_at_random(run, own):
    file = own.choice(["model", "optimizer", "random"])
    path = run / LAST / f"{file}.safetensors"
    tensors = load_file(path)
    name, how = own.choice(sorted(tensors)), own.choice([*WRONG_TENSORS, "missing", "extra"])
    if how in WRONG_TENSORS and not (how in ("not a number", "infinite") and file == "random"):
        tensors[name] = WRONG_TENSORS[how](tensors[name])
    elif how == "missing":
        del tensors[name]
    else:
        tensors["extra.evil"] = torch.zeros(2)
    save_file(tensors, path)
    update_manifest(run / LAST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(120))
def test_a_tensor_changed_anywhere_gives_an_answer_or_an_error(run, capsys, seed):
    changed_tensor_at_random(run, random.Random(seed))
    for words in (["evaluate", run, "--limit", 3], ["train", "--resume", run, "--steps", 5]):
        code = main(list(map(str, words)))
        assert_no_traceback(code, capsys.readouterr().err)


def test_with_invalid_counters_a_resume_uses_the_checkpoint_before(run, made):
    told = []
    change_state(run, lambda state: state["progress"].update(step=10**30))
    train({}, resume=str(run), tell=told.append)
    assert any("progress.step" in text for text in told)
    assert_same(run, made)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("random"), "random: expected an object"),
        (lambda state: state["random"].pop("numpy"), "random: expected python and numpy"),
        (lambda state: state["random"]["python"].pop("gauss"), r"random\.python\.gauss"),
        (lambda state: state["random"].update(others=[None]), "random: expected an object"),
    ],
)
def test_a_state_that_lacks_a_random_generator_is_refused(run, change, words):
    """The random changes above once raised tracebacks here."""
    change_state(run, change)
    with pytest.raises(RegardError, match=words):
        train({"steps": 6}, resume=str(run), tell=lambda text: None)


@pytest.mark.parametrize("missing", [None, *schema.SCALER])
def test_an_incomplete_state_of_the_loss_scaler_is_refused(missing):
    scaler = torch.amp.GradScaler("cpu").state_dict()
    state = {"progress": {"step": 4}, "scaler": {name: scaler[name] for name in scaler if name != missing}}
    if missing is None:
        assert schema.check_state(state, 4) == state
        return
    with pytest.raises(RegardError, match=rf"scaler\.{missing}"):
        schema.check_state(state, 4)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors"])
def test_a_pipe_instead_of_a_file_is_damage_and_does_not_block(run, name):
    import os

    (run / LAST / name).unlink()
    os.mkfifo(run / LAST / name)
    with pytest.raises(checkpoints.Damaged, match=r"cannot be read: it is a pipe \(FIFO\)"):
        checkpoints.load(run / LAST)


def test_a_file_larger_than_the_manifest_says_is_not_read(run):
    with (run / LAST / "model.safetensors").open("ab") as file:
        file.truncate(1 << 36)  # sparse: it takes no disk space, but reading it would take memory
    with pytest.raises(checkpoints.Damaged, match="bytes"):
        checkpoints.load(run / LAST)


def test_a_model_of_another_size_is_refused_before_memory_is_allocated(run):
    """A vocabulary of a billion words would otherwise take all memory."""
    change_state(run, lambda state: state["task"].update(vocabulary=list(range(17))))
    with pytest.raises(RegardError, match=r"rows\.weight is \(13, 7\), the model's \(17, 7\)"):
        load(run, device="cpu", checkpoint="last", tell=lambda text: None)
