"""The pictures of networks in docs/architectures.md, drawn from the modules.

python docs/make_pictures.py            # rewrite docs/images/architecture-*.svg
python docs/make_pictures.py --check    # exit with 1 if one would change
"""

from __future__ import annotations

import sys
from pathlib import Path

from regard.observation import architecture
from regard_workbench.cli.show import models_and_tasks

IMAGES = Path(__file__).with_name("images")
MODELS = ("transformer", "seq2seq", "ntm")


def picture(name: str) -> str:
    """The SVG of a model as `regard show` writes it."""
    facts = models_and_tasks.of_model(name, {})
    return architecture.svg(architecture.Diagram.from_dict(facts["architecture"]), f"built for {facts['built_for']}")


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(__doc__, lambda: {IMAGES / f"architecture-{name}.svg": picture(name) for name in MODELS}))
