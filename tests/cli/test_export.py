"""`regard export`: a file that another program runs, its description, and the check of its answers."""

import json

import pytest
import torch

import regard
from regard_workbench.cli.main import main
from regard_workbench.training.exporting import export


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "run"
    regard.train(
        "digits", model="encoder(dim=16, layers=1)", steps=2, out=folder, device="cpu", quiet=True, batch_size=4
    )
    return folder


@pytest.mark.slow
def test_a_program_of_torch_is_written_checked_and_described(digits, capsys):
    assert main(["export", str(digits), "--to", "torch", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest_difference"] < 1e-5
    assert found["inputs"] == {"inputs": {"shape": ["any", "any", 8], "dtype": "float32"}}
    assert found["outputs"] == {"output": ["any", 10]}
    described = json.loads((digits / "model.pt2.json").read_text())
    assert described["answer"] and described["task"] == "digits"
    graph = torch.export.load(digits / "model.pt2").module()
    assert graph(torch.zeros(7, 5, 8))[0].shape == (7, 10)  # another batch, fewer rows


@pytest.mark.slow
def test_an_onnx_file_is_written_and_answered_the_same(digits, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "digits.onnx"
    assert main(["export", str(digits), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"file: {out}" in shown and "all of ONNX's own set" in shown
    session = onnxruntime.InferenceSession(str(out))
    given = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(3))
    from regard_workbench.tasks import Batch
    from regard_workbench.training.loading import load_run

    _, model, _ = load_run(digits)
    with torch.no_grad():
        expected = model(Batch.of(given))
    found = torch.from_numpy(session.run(None, {"inputs": given.numpy()})[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_forms_of_one_name_have_a_description_each_and_the_users_file_stays(digits, tmp_path):
    pytest.importorskip("onnxscript")
    users = tmp_path / "digits.json"
    users.write_text('{"mine": 1}')
    for form, name in (("onnx", "digits.onnx"), ("torch", "digits.pt2"), ("torch", "digits.pt2")):
        export.export_run(digits, form, tmp_path / name)  # the third time over an earlier export
        described = json.loads((tmp_path / f"{name}.json").read_text())
        assert described["format"] == name.split(".")[1]
    assert users.read_text() == '{"mine": 1}'
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "digits.json",
        "digits.onnx",
        "digits.onnx.json",
        "digits.pt2",
        "digits.pt2.json",
    ]


@pytest.mark.parametrize(
    "content", ['{"mine": 1}', "[1, 2]", "no JSON", None], ids=["object", "list", "text", "folder"]
)
def test_a_file_of_the_user_in_the_place_of_the_description_is_refused(digits, tmp_path, content, capsys):
    users = tmp_path / "digits.pt2.json"
    users.mkdir() if content is None else users.write_text(content)
    assert main(["export", str(digits), "--to", "torch", "--out", str(tmp_path / "digits.pt2")]) == 2
    assert "digits.pt2.json" in capsys.readouterr().err
    assert content is None or users.read_text() == content
    assert not (tmp_path / "digits.pt2").exists()


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_an_error(digits, monkeypatch, capsys):
    real = export._written

    def wrong(*arguments):
        answers, count = real(*arguments)
        return (lambda tensors: [one + 1 for one in answers(tensors)]), count

    monkeypatch.setattr(export, "_written", wrong)
    assert main(["export", str(digits), "--to", "torch"]) == 1
    assert "differ from the model's" in capsys.readouterr().err


def test_a_folder_for_the_hub_holds_the_model_its_task_and_its_card(digits, tmp_path, capsys):
    from regard_workbench.comparison.publishing import load_saved
    from regard_workbench.tasks import Batch
    from regard_workbench.training.loading import load_run

    assert main(["export", str(digits), "--to", "hub", "--out", str(tmp_path / "saved")]) == 0
    shown = capsys.readouterr().out
    assert "files: README.md, config.json, model.safetensors, task.json" in shown and "hf upload" in shown
    assert "| test accuracy |" in (tmp_path / "saved" / "README.md").read_text()
    given = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        found, expected = (one[1](Batch.of(given)) for one in (load_saved(tmp_path / "saved"), load_run(digits)))
    assert torch.equal(found, expected)
    assert main(["export", str(digits), "--to", "hub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(digits / "hub")


def test_a_wrong_ending_and_a_missing_folder_are_refused(digits, tmp_path, capsys):
    assert main(["export", str(digits), "--out", str(tmp_path / "model.bin")]) == 2
    assert "ends in .onnx" in capsys.readouterr().err
    assert main(["export", str(digits), "--out", str(tmp_path / "none" / "model.onnx")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["export", str(tmp_path)]) == 2
    assert "no run here" in capsys.readouterr().err


def test_training_leaves_the_curves_of_the_run_as_figures(digits):
    assert (digits / "figures" / "training-loss-step.svg").is_file() or list((digits / "figures").glob("*.svg"))
