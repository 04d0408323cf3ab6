"""`regard bench` finds the cases of a checkout, and has a few of its own without one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIST = [sys.executable, "-m", "regard", "bench", "--device", "cpu", "--list", "--json"]


def listed(folder, packages):
    done = subprocess.run(
        LIST, cwd=folder, env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True
    )
    return [case["name"] for case in json.loads(done.stdout)], done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The packages as a wheel installs them: no checkout around."""
    folder = tmp_path_factory.mktemp("installed")
    for package in ("regard", "regard_workbench"):
        shutil.copytree(ROOT / "src" / package, folder / package)
    return folder


@pytest.mark.slow
def test_an_installed_package_has_a_few_cases_and_says_where_the_others_are(installed, tmp_path):
    names, told = listed(tmp_path, installed)
    assert {name.split("-")[0] for name in names} == {"dot", "overhead"}
    assert told == (
        f"{len(names)} cases come with the package; the others are in the folder bench/ of a checkout: "
        "run regard bench there.\n"
    )


@pytest.mark.slow
def test_an_installed_package_finds_the_cases_of_the_checkout_it_runs_in(installed, tmp_path):
    everything = listed(ROOT, installed)
    assert everything == listed(tmp_path, ROOT / "src")  # that of the package itself
    assert len(everything[0]) == 27 and everything[1] == ""
