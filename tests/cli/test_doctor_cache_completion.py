"""`regard doctor`, `regard cache`, `regard completion`: what is here, what is on disk, what a shell completes."""

import json
import shutil
import subprocess

import pytest

from regard.cli.cache import folder_of
from regard.cli.main import main


def test_the_doctor_names_machine_extras_and_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(
        "regard.benchmarks.machine.requirements",
        lambda: ["numpy>=1; extra == 'sweep'", "no-such-package>=1; extra == 'onnx'"],
    )
    assert main(["doctor", "--no-speed", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["torch"] and found["machine"]["cores"] >= 1
    rows = {row["extra"]: row for row in found["extras"]}
    assert rows["sweep"]["installed"] and rows["sweep"]["get"] is None
    assert rows["onnx"]["missing"] == ["no-such-package"]
    assert rows["onnx"]["get"] == 'pip install "regard[onnx]"'
    assert main(["doctor", "--no-speed"]) == 0
    assert 'missing no-such-package; pip install "regard[onnx]"' in capsys.readouterr().out


def test_the_doctor_times_each_implementation_or_says_why_not(monkeypatch):
    from regard.benchmarks import machine

    monkeypatch.setitem(machine._SHAPES, "cpu", (1, 2, 32, 8))
    monkeypatch.setattr(
        machine, "NAMES", ("reference", "tiled", "sdpa", "triton")
    )  # flex compiles for seconds
    rows = {row["implementation"]: row for row in machine.speeds("cpu")}
    for name in ("reference", "tiled", "sdpa"):
        assert rows[name]["why_not"] is None
        assert rows[name]["forward_ms"] > 0 and rows[name]["training_ms"] > 0
    assert rows["triton"]["why_not"] is not None or rows["triton"]["forward_ms"]


def test_the_doctor_says_why_an_implementation_runs_forward_alone(capsys, monkeypatch):
    from regard.benchmarks import machine

    monkeypatch.setitem(machine._SHAPES, "cpu", (1, 2, 32, 8))
    monkeypatch.setattr(machine, "NAMES", ("flex",))
    monkeypatch.setattr(machine, "_milliseconds", lambda call, device: 2.5)  # flex compiles for seconds
    assert main(["doctor", "--device", "cpu"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  flex ")]
    assert "2.5 ms forward; cannot train here: FlexAttention has no backward pass on the CPU" in line


def test_a_gpu_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["doctor", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.fixture
def caches(monkeypatch, tmp_path):
    """Two caches with files, a link out of one of them, and a file that must stay."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    for name in ("triton", "inductor"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "kernel").write_bytes(b"x" * 1500)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    (tmp_path / "triton" / "link").symlink_to(tmp_path / "mine")
    return tmp_path


def test_caches_are_listed_with_their_sizes(caches, capsys):
    assert main(["cache", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["inductor"]["bytes"] == 1500 and rows["inductor"]["files"] == 1
    assert rows["triton"]["folder"] == str(caches / "triton")
    assert main(["cache"]) == 0
    assert "inductor: 1.5 KiB in 1 files" in capsys.readouterr().out


def test_only_the_named_cache_is_emptied_and_links_are_not_followed(caches, capsys):
    assert main(["cache", "--clean", "triton"]) == 0
    assert list((caches / "triton").iterdir()) == []
    assert (caches / "mine" / "thesis.txt").read_text() == "keep me"
    assert (caches / "inductor" / "deep" / "kernel").exists()
    assert "removed" in capsys.readouterr().out


def test_a_home_folder_is_no_cache(caches, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(caches / "mine"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(caches / "mine"))
    assert main(["cache", "--clean", "all"]) == 1
    assert "nothing was removed" in capsys.readouterr().err
    assert (caches / "mine" / "thesis.txt").exists()


def test_an_unknown_cache_is_refused(caches, capsys):
    assert main(["cache", "--clean", "triton,everything"]) == 2
    assert "got 'everything'" in capsys.readouterr().err


def test_the_folders_are_those_of_the_libraries(monkeypatch, tmp_path):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    expected = cache_dir()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert str(folder_of("inductor")) == expected
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    triton = pytest.importorskip("triton")
    assert str(folder_of("triton")) == triton.knobs.cache.dir


def completed(script, *words):
    listed = " ".join(f"'{word}'" for word in words)
    call = f'COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _regard; echo "${{COMPREPLY[@]}}"'
    found = subprocess.run(["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=True)
    return found.stdout.split()


def test_bash_completes_verbs_options_and_names(capsys):
    if shutil.which("bash") is None:
        pytest.skip("there is no bash here")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "regard", "tr") == ["train"]
    assert completed(script, "regard", "train", "da") == ["dates"]
    assert "--optim.lr" in completed(script, "regard", "train", "--optim.l")
    assert completed(script, "regard", "train", "--attention", "local-") == [
        "local-layer",
        "local-m",
        "local-p",
    ]
    assert completed(script, "regard", "export", "run", "--to", "o") == ["onnx"]
    assert completed(script, "regard", "evaluate", "no-such") == []


def test_every_verb_is_in_the_script_of_every_shell(capsys):
    from regard.cli.common.command import verbs

    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(verb in script for verb in verbs())
        assert "--precision" in script or "-l precision" in script
    assert main(["completion", "csh"]) == 2
    assert "SHELL" in capsys.readouterr().err
