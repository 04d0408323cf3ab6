"""The files of the repository, as git sees them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests", "docs", "examples", "bench", ".ci", ".github")


def kept_files() -> list[Path]:
    """Files that git keeps or would keep; in a copy without git, those of the project's folders."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [path for path in (*ROOT.iterdir(), *inside) if path.is_file() and "__pycache__" not in path.parts]
