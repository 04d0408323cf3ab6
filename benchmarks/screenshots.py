"""Screenshots of every view for docs/images: `python -m benchmarks.screenshots FOLDER [VIEW …]`.

FOLDER holds what was trained for them; README.md beside this file says by which commands:

    additive/, dot/   `regard train dates --model "seq2seq(dim=64)" --attention additive` (and dot)
    learning/         the same with all of its checkpoints kept (`--save_every 40`)
    copy/             `regard train copy`
    vit/              a small Hugging Face ViT trained on Fashion-MNIST, with picture.png

MiniLM and the Llama of 260K parameters are real models that come with the tests.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser import chromium, stages
from tests.browser.driving import opened
from tests.browser.serving import viewed

TARGET = stages.ROOT / "docs" / "images"
LARGEST = 300_000  # bytes
DATE = "Sunday, 3rd of May 1979"


def scenes(trained: Path) -> dict[str, tuple[list[str], dict[str, Any], list[str]]]:
    """For each view: what `regard view` is told, what the link says, what the pointer rests on."""
    bert = [str(stages.minilm_folder()), "--text", stages.SENTENCE]
    dates = [str(trained / "additive"), "--text", DATE]
    return {
        "overview": (bert, {"site": 3, "head": 1}, []),
        "matrix": (bert, {"site": 3, "head": 1, "row": 9, "key": 2}, []),  # “it” looks at “animal”
        "tokens": (bert, {"site": 3, "head": 1, "row": 9}, []),
        "steps": (
            ["STORY", "--text", "Once upon a time", "--generate", "40"],
            {"site": 2, "head": 5, "call": 24},
            [],
        ),
        "image": (
            [str(trained / "vit"), "--image", str(trained / "vit" / "picture.png")],
            {"site": 2, "head": 1},
            [],
        ),
        "alignment": (dates, {}, []),
        "memory": ([str(trained / "copy")], {}, []),
        "timeline": ([str(trained / "learning"), "--text", DATE, "--checkpoints"], {}, []),
        "compare": ([*dates, "--against", str(trained / "dot")], {}, []),
    }


def shoot(page: Any, address: str, view: str, link: dict[str, Any], hover: list[str]) -> bytes:
    """One view as PNG, when everything has come."""
    opened(page, address, view, theme="light", **link)
    for name in hover:
        page.get_by_test_id(name).hover()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1200)
    return page.screenshot()


def smaller(png: bytes) -> bytes:
    """The same picture with a palette where it would be too large."""
    best = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(best, "PNG", optimize=True)
    if best.tell() > LARGEST:
        best = io.BytesIO()
        Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(best, "PNG", optimize=True)
    assert best.tell() <= LARGEST, f"{best.tell()} bytes"
    return best.getvalue()


def main(folder: str, names: list[str]) -> None:
    """Every view that was asked for, or all."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.SWITCHES)
        for view, (arguments, link, hover) in scenes(Path(folder)).items():
            if names and view not in names:
                continue
            given = [str(stages.story_folder()) if word == "STORY" else word for word in arguments]
            with viewed(*given) as address:
                page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
                content = smaller(shoot(page, address, view, link, hover))
            path = TARGET / f"view-{view}.png"
            path.write_bytes(content)
            print(f"{path.relative_to(stages.ROOT)}: {len(content) / 1000:.0f} KB", flush=True)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
