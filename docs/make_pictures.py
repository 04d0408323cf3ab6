"""The pictures of networks in docs/architectures.md, drawn from the modules.

python docs/make_pictures.py            # rewrite docs/images/architecture-*.svg
python docs/make_pictures.py --check    # exit with 1 if one would change
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regard.cli.show import models_and_tasks
from regard.observation import architecture

IMAGES = Path(__file__).with_name("images")
MODELS = ("transformer", "seq2seq", "ntm")


def picture(name: str) -> str:
    """The SVG of a model as `regard show` writes it."""
    facts = models_and_tasks.of_model(name, {})
    return architecture.svg(
        architecture.Diagram.from_dict(facts["architecture"]), f"built for {facts['built_for']}"
    )


def main() -> int:
    """Write or check the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only say whether the pictures are up to date")
    checks = parser.parse_args().check
    changed = []
    for name in MODELS:
        path, found = IMAGES / f"architecture-{name}.svg", picture(name)
        if not path.exists() or path.read_text(encoding="utf-8") != found:
            changed.append(path.name)
            if not checks:
                path.write_text(found, encoding="utf-8")
    print(f"changed: {', '.join(changed)}" if changed else "up to date")
    return 1 if checks and changed else 0


if __name__ == "__main__":
    sys.exit(main())
