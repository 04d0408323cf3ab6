"""Data sets made small enough to travel to a lent machine, and unpacked there.

    python -m benchmarks.carried pack ../shared/data carry      # here
    python -m benchmarks.carried unpack carry outputs/data      # there

One archive for each data set (`NAME.tar.xz`), since what is compressed together shares what all its files repeat.
Members of zip and gzip files are unpacked first. All are without loss but one: the *training* pictures of Flickr8k are
encoded again as WebP of quality 45, 128 × 128 pixels as before, because both data sets of
pictures together are larger than what may travel. Pictures for validation and test stay as they are.

`agents.tar.xz` holds the Python files of gymnasium, minigrid and what they import, as they are installed here, for a
machine on which nothing can be installed (`PYTHONPATH=outputs/data/agents`); an empty pygame stands in for the one that
draws, since episodes are played and not drawn.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import lzma
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SETS = ("fashion-mnist", "flickr8k", "sst2")
PACKAGES = ("cloudpickle", "farama_notifications", "gymnasium", "minigrid")
PYGAME = {"__init__.py": b"def __getattr__(name):\n    return object\n", "freetype.py": b""}
SMALLER = "images128-train.zip"
QUALITY = 45
# Bytes of pictures depend on the ones before them, not on where they stand in words of four.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 4, "lp": 0, "pb": 0}]


def pack(data: Path, into: Path) -> None:
    """Write an archive for each data set."""
    into.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        target = into / f"{name}.tar.xz"
        with lzma.open(target, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w") as archive:
            for path in sorted((data / name).iterdir()):
                own, content = _unpacked(path)
                entry = tarfile.TarInfo(f"{name}/{own}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        print(f"{target}: {target.stat().st_size:,} bytes", flush=True)
    pack_packages(into)


def pack_packages(into: Path) -> None:
    """Write `agents.tar.xz`."""
    files = {f"pygame/{name}": content for name, content in PYGAME.items()}
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None, f"{name} is not installed"
        root = Path(found.origin).parent
        files |= {f"{name}/{path.relative_to(root)}": path.read_bytes() for path in sorted(root.rglob("*.py"))}
    with tarfile.open(into / "agents.tar.xz", "w:xz") as archive:
        for own, content in files.items():
            entry = tarfile.TarInfo(f"agents/{own}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpack(source: Path, into: Path) -> None:
    """Unpack all archives of a folder, at once."""
    into.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        for name in pool.map(_unpack, *zip(*((path, into) for path in sorted(source.glob("*.tar.xz"))), strict=True)):
            print(f"unpacked {name}", flush=True)


def _unpack(path: Path, into: Path) -> str:
    with tarfile.open(path) as archive:
        archive.extractall(into, filter="data")
    return path.name


def _unpacked(path: Path) -> tuple[str, bytes]:
    """The name and the content of a file: of .gz what is in it, of .zip the same members without compression."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        return path.stem, gzip.decompress(content)
    if path.suffix != ".zip":
        return path.name, content
    made = io.BytesIO()
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(made, "w") as after:
        for name in before.namelist():
            picture = before.read(name)
            after.writestr(zipfile.ZipInfo(name), _smaller(picture) if path.name == SMALLER else picture)
    return path.name, made.getvalue()


def _smaller(picture: bytes) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").save(made, "webp", quality=QUALITY)
    return made.getvalue()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("into", type=Path)
    given = parser.parse_args()
    (pack if given.what == "pack" else unpack)(given.source, given.into)


if __name__ == "__main__":
    main()
