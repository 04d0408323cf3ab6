"""Screenshots of every view for docs/images: `python -m benchmarks.screenshots FOLDER [VIEW …]`.

FOLDER holds what was trained for them:

    dates-additive  regard train dates --model "seq2seq(dim=64)" --attention additive --steps 400 (dates-dot: dot)
    dates           the first, with a copy of every checkpoint kept in its folder (--save_every 40)
    copy            regard train copy --steps 14000
    fashion-vit     a Hugging Face ViT (4 layers, 4 heads of 12, patches of 4) after 900 steps on Fashion-MNIST, and an
                    image of its test set as boot.png

MiniLM and the Llama of 260K parameters are real models that come with the tests.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser import chromium, page_models
from tests.browser.driving import opened
from tests.browser.serving import viewed

TARGET = page_models.ROOT / "docs" / "images"
LARGEST = 300_000  # bytes
DATE = "Sunday, 3rd of May 1979"


def scenes(trained: Path, home: Path) -> dict[str, tuple[list[str], dict[str, int]]]:
    """For each view: the arguments of `regard view`, and the state of the page."""
    bert = [str(page_models.minilm_folder()), "--text", page_models.SENTENCE]
    story = [str(home / "stories260K"), "--text", "Once upon a time", "--generate", "40"]
    boot = [str(trained / "fashion-vit"), "--image", str(trained / "fashion-vit" / "boot.png")]
    dates = [str(trained / "dates-additive"), "--text", DATE]
    return {
        "overview": (bert, {"site": 3, "head": 1}),
        "matrix": (bert, {"site": 3, "head": 1, "row": 9, "key": 2}),  # “it” looks at “animal”
        "tokens": (bert, {"site": 3, "head": 1, "row": 9}),
        "steps": (story, {"site": 2, "head": 6, "call": 30}),  # “she” looks at “Lily”
        "image": (boot, {"site": 2, "head": 1}),
        "alignment": (dates, {}),
        "memory": ([str(trained / "copy")], {}),
        "timeline": ([str(trained / "dates"), "--text", DATE, "--checkpoints"], {"variant": 4}),
        "compare": ([*dates, "--against", str(trained / "dates-dot")], {}),
    }


def shoot(page: Any, address: str, view: str, link: dict[str, int]) -> bytes:
    """One view as PNG, when everything is loaded."""
    opened(page, address, view, theme="light", **link)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1200)
    return page.screenshot()


def smaller(png: bytes) -> bytes:
    """The same image with a palette where it is too large."""
    best = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(best, "PNG", optimize=True)
    if best.tell() > LARGEST:
        best = io.BytesIO()
        Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(best, "PNG", optimize=True)
    assert best.tell() <= LARGEST, f"{best.tell()} bytes"
    return best.getvalue()


def main(folder: str, names: list[str]) -> None:
    """The requested views, or all."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.SWITCHES)
        page_models.story_folder(Path(home) / "stories260K")
        for view, (arguments, link) in scenes(Path(folder), Path(home)).items():
            if names and view not in names:
                continue
            with viewed(*arguments) as address:
                page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
                content = smaller(shoot(page, address, view, link))
            path = TARGET / f"view-{view}.png"
            path.write_bytes(content)
            print(f"{path.relative_to(page_models.ROOT)}: {len(content) / 1000:.0f} KB", flush=True)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
