"""`regard doctor`, `regard cache`, `regard completion`: what is here, what is on disk, what a shell completes."""

import json
import os
import shutil
import subprocess

import pytest

from regard_workbench.cli.common import code_caches
from regard_workbench.cli.common.code_caches import folder_of
from regard_workbench.cli.main import main


def test_the_doctor_names_machine_extras_and_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr(
        "regard_workbench.bench.machine.requirements",
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
    from regard_workbench.bench import machine

    monkeypatch.setitem(machine._SHAPES, "cpu", (1, 2, 32, 8))
    monkeypatch.setattr(machine, "NAMES", ("reference", "tiled", "sdpa", "triton"))  # flex compiles for seconds
    rows = {row["implementation"]: row for row in machine.speeds("cpu")}
    for name in ("reference", "tiled", "sdpa"):
        assert rows[name]["why_not"] is None
        assert rows[name]["forward_ms"] > 0 and rows[name]["training_ms"] > 0
    assert rows["triton"]["why_not"] is not None or rows["triton"]["forward_ms"]


def test_the_doctor_says_why_an_implementation_runs_forward_alone(capsys, monkeypatch):
    from regard_workbench.bench import machine

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


KEY = "A2" * 26  # of Triton: a SHA-256 in base 32


@pytest.fixture
def caches(monkeypatch, tmp_path):
    """Two caches with files, a link out of one of them, and a file that must stay."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    for folder, file in ((f"triton/{KEY}", "kernel.json"), ("inductor/q7", f"cq7{'z' * 49}.py")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).write_bytes(b"x" * 1500)
    (tmp_path / "inductor" / "locks").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    (tmp_path / "triton" / KEY / "link").symlink_to(tmp_path / "mine")
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
    assert list((caches / "inductor" / "q7").iterdir())
    assert "removed" in capsys.readouterr().out


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("variable", "make", "words"),
    [
        ("TRITON_CACHE_DIR", lambda here: here / "mine", "holds 'thesis.txt'"),
        ("TORCHINDUCTOR_CACHE_DIR", lambda here: ".", "holds 'inductor'"),  # the current folder
        ("TORCHINDUCTOR_CACHE_DIR", lambda here: linked(here, here / "mine"), "is a link"),
        ("TRITON_CACHE_DIR", lambda here: linked(here, here / "triton"), "is a link"),
        ("TORCHINDUCTOR_CACHE_DIR", lambda here: named(here, "cache", "triton"), "does not look like"),
        ("TORCHINDUCTOR_CACHE_DIR", lambda here: named(here, "fxgraph", "notes.py"), "holds 'notes.py'"),
        ("TORCHINDUCTOR_CACHE_DIR", lambda here: named(here, "fxgraph", "py"), "holds 'py'"),
        ("TRITON_CACHE_DIR", lambda here: named(here, KEY, "0"), "holds '0'"),
    ],
)
def test_a_link_or_a_folder_that_is_no_cache_is_not_emptied(caches, monkeypatch, capsys, variable, make, words):
    monkeypatch.chdir(caches)
    monkeypatch.setenv(variable, str(make(caches)))
    before = files_below(caches)
    assert main(["cache", "--clean", "inductor" if "INDUCTOR" in variable else "triton"]) == 1
    err = capsys.readouterr().err
    assert words in err and "Nothing was removed" in err and variable in err
    assert files_below(caches) == before


def linked(here, target):
    (here / "link").symlink_to(target)
    return here / "link"


def named(here, *names):
    """A folder with folders of these names, each with a file."""
    for name in names:
        (here / "like" / name).mkdir(parents=True)
        (here / "like" / name / "work.txt").write_text("keep me")
    return here / "like"


def test_a_folder_of_another_user_is_not_emptied_and_the_doctor_warns_of_it(caches, monkeypatch, capsys):
    monkeypatch.setattr(os, "getuid", lambda: 4211)
    monkeypatch.setattr(code_caches, "_ROOT", 4243)
    before = files_below(caches)
    assert main(["cache", "--clean", "all"]) == 1
    assert capsys.readouterr().err.count("belongs to another user") == 2
    assert files_below(caches) == before
    assert main(["doctor", "--no-speed"]) == 0
    shown = capsys.readouterr().out
    assert f"{caches / 'inductor'}, from which inductor loads compiled code, belongs to another user" in shown


def test_the_doctor_warns_of_a_folder_of_code_that_everybody_may_write(caches, capsys):
    assert main(["doctor", "--no-speed", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["caches"]}
    assert rows["inductor"] == {"name": "inductor", "folder": str(caches / "inductor"), "danger": None}
    (caches / "inductor").chmod(0o777)
    assert main(["doctor", "--no-speed"]) == 0
    shown = capsys.readouterr().out
    assert "inductor loads compiled code, may be written by every user. Set TORCHINDUCTOR_CACHE_DIR" in shown


def test_the_cache_that_torch_writes_is_recognised(monkeypatch, tmp_path, capsys):
    from torch._inductor.codecache import write

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for number in range(5):
        write(f"x = {number}", "py")
    assert main(["cache", "--clean", "inductor"]) == 0, capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
    assert completed(script, "regard", "train", "--attention", "local-") == ["local-layer", "local-m", "local-p"]
    assert completed(script, "regard", "export", "run", "--to", "o") == ["onnx"]
    assert completed(script, "regard", "evaluate", "no-such") == []


def test_every_verb_is_in_the_script_of_every_shell(capsys):
    from regard_workbench.cli.common.command import verbs

    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(verb in script for verb in verbs())
        assert "--precision" in script or "-l precision" in script
    assert main(["completion", "csh"]) == 2
    assert "SHELL" in capsys.readouterr().err
