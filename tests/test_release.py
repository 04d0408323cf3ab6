"""What is released: the same bytes from the same sources, complete, described, installable; and the files around it."""

import email.parser
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import regard
from tests.kept_files import kept_files
from tests.test_install import LIGHT, PROJECT, canonical

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = sorted(PROJECT["optional-dependencies"])


def copied(place, mode):
    """A copy of the repository's files, with other times and permissions."""
    for path in kept_files():
        target = place / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        target.chmod(mode)
        os.utime(target, (1_000_000_000 + mode, 1_000_000_000 + mode))
    return place


def built(place, out):
    for name in ("build", "hatchling"):
        pytest.importorskip(name, reason=f"needs {name}: pip install build hatchling")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(place)],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {path.name: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """{file name: path} of the wheel and the source archive, built in a copy without git."""
    home = tmp_path_factory.mktemp("release")
    return built(copied(home / "one", 0o644), home / "dist")


@pytest.fixture(scope="module")
def wheel(release):
    (name,) = (name for name in release if name.endswith(".whl"))
    return release[name]


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"] and "version" not in project
    lines = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in kept_files()
        if path.suffix in (".py", ".toml", ".cff", ".yml", ".txt")
        for line in path.read_text(encoding="utf-8", errors="ignore").splitlines()
        if re.search(rf"version\w*\s*[:=]\s*[\"']?{re.escape(regard.__version__)}\b", line)
    ]
    assert lines == [f'src/regard/__init__.py: __version__ = "{regard.__version__}"']


@pytest.mark.slow
def test_two_builds_are_equal_bit_for_bit(release, tmp_path):
    """In other folders, at other times, with other permissions of the files."""
    again = built(copied(tmp_path / "a longer name", 0o600), tmp_path / "dist")
    assert (
        sorted(again)
        == sorted(release)
        == [f"regard-{regard.__version__}-py3-none-any.whl", f"regard-{regard.__version__}.tar.gz"]
    )
    assert all(again[name].read_bytes() == release[name].read_bytes() for name in release)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path.relative_to(ROOT / "src").as_posix() for path in kept_files() if ROOT / "src" in path.parents}
    assert inside == sources
    assert "regard/py.typed" in inside


@pytest.mark.slow
def test_the_source_archive_holds_everything_that_git_keeps(release):
    (name,) = (name for name in release if name.endswith(".tar.gz"))
    with tarfile.open(release[name]) as archive:
        inside = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    kept = {path.relative_to(ROOT).as_posix() for path in kept_files()}
    assert inside - {"PKG-INFO"} == kept


@pytest.mark.slow
def test_the_metadata_say_what_the_project_says(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = email.parser.Parser().parsestr(archive.read(name).decode())
    assert found["Version"] == regard.__version__
    assert found["Requires-Python"] == ">=3.11"
    assert sorted(found.get_all("Provides-Extra")) == EXTRAS
    always = [line for line in found.get_all("Requires-Dist") if "extra ==" not in line]
    assert {canonical(re.match(r"[\w.-]+", line)[0]) for line in always} == {"torch", "numpy"}


@pytest.mark.slow
def test_twine_finds_nothing_to_complain_about(release):
    files = [str(path) for path in release.values()]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_installed_wheel_runs_without_the_repository(wheel, tmp_path):
    place = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    code = (
        "import regard, torch; print(regard.__file__); x = torch.ones(1, 3, 2); "
        "print(regard.attend(x, x, x).sum().item()); from regard_workbench.cli.main import main; main(['--version'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, total, version = done.stdout.splitlines()[:3]
    assert Path(where).is_relative_to(place)
    assert total == "6.0"
    assert regard.__version__ in version


@pytest.fixture(scope="module")
def empty_environment(wheel, tmp_path_factory):
    """The python of a new environment into which the wheel was installed with what it requires."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    install(python, str(wheel))
    return python


def install(python, *words):
    done = subprocess.run(
        [python, "-m", "pip", "install", "--constraint", str(ROOT / "constraints.txt"), *words],
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_the_light_core_runs_in_an_empty_environment(empty_environment):
    done = subprocess.run([empty_environment, "-c", LIGHT, "nothing"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([empty_environment, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True)
    names = {canonical(line.partition("==")[0]) for line in listed.stdout.splitlines()}
    assert {"regard", "torch", "numpy"} <= names
    assert not names & {"scipy", "matplotlib", "rich", "jsonargparse", "accelerate", "transformers"}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_can_be_installed_beside_the_core(extra, empty_environment, wheel):
    """pip finds versions that go together, and leaves torch as it is."""
    told = install(empty_environment, "--dry-run", f"{wheel}[{extra}]")
    would = re.findall(r"^Would install (.*)$", told, re.MULTILINE)
    assert not [word for line in would for word in line.split() if re.match(r"torch-\d", word)]


def workflow():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def test_the_workflow_calls_the_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    lines = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    called = {word for line in lines for word in re.findall(r"^make ([a-z]+)", line)}
    assert called == {"check", "test", "nightly", "release"} <= targets
    others = [line for line in lines if not line.startswith("make ")]
    assert all(line.startswith(("test ", "sha256sum ")) for line in others)


def test_the_workflow_tests_every_supported_python_and_torch():
    matrix = workflow()["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert [version.rpartition(".")[0] for version in matrix["torch"]] == ["2.11", "2.12", "2.13"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    assert named == matrix["python"]
    pinned = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned[1] == matrix["torch"][-1]


@pytest.mark.parametrize("name", ["bug", "speed", "idea"])
def test_an_issue_form_asks_for_what_is_needed(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    asked = [field["id"] for field in form["body"]]
    assert len(set(asked)) == len(asked) >= 2
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field["validations"]["required"] for field in form["body"])


def test_the_citation_has_what_its_format_requires():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)
    assert cited["license"] == PROJECT["license"]
    assert "version" not in cited, "the version is written in one place"


def test_the_deprecation_policy_has_five_points():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = re.search(r"^## Deprecation\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)[1]
    assert re.findall(r"^(\d)\. ", section, re.MULTILINE) == list("12345")


def test_no_file_names_a_place_that_packages_are_fetched_from():
    places = ("py" + r"pi\.org", "python" + r"hosted\.org", "download.py" + r"torch\.org", "--index" + "-url")
    hosts = re.compile("|".join(places))
    texts = [path for path in kept_files() if path.suffix not in (".png", ".svg", ".pdf")]
    found = [path for path in texts if hosts.search(path.read_text(encoding="utf-8", errors="ignore"))]
    assert not found
