"""The program; see the package."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

SECTIONS = ("surface", "texts", "numbers", "walks")


def differences(before: object, after: object, place: str = "") -> Iterator[str]:
    """One line for each leaf that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name, "(absent)"), after.get(name, "(absent)"), f"{place}/{name}")
    elif before != after:
        yield f"{place}: {str(before)[:160]!r} is now {str(after)[:160]!r}"


def main() -> int:
    """Record, or compare two records."""
    if sys.argv[1:2] == ["--compare"]:
        before, after = (Path(folder) for folder in sys.argv[2:4])
        lines = [
            f"{path.stem}{line}"
            for path in sorted(before.glob("*.json"))
            if (after / path.name).exists()
            for line in differences(json.loads(path.read_text()), json.loads((after / path.name).read_text()))
        ]
        print("\n".join(lines) or "no difference")
        return 1 if lines else 0
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for section in sys.argv[2:] or SECTIONS:
        recorded = importlib.import_module(f"{__package__}.{section}").record()
        (folder / f"{section}.json").write_text(json.dumps(recorded, indent=1, sort_keys=True, default=str) + "\n")
        print(f"{section}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
