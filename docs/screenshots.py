"""Screenshots of every view for docs/images: `python -m docs.screenshots FOLDER [VIEW …]`.

FOLDER holds what was trained for them:

    dates-additive  regard train dates --model "seq2seq(dim=64)" --attention additive --steps 400 (dates-dot: dot)
    dates           the first, with a copy of every checkpoint kept in its folder (--save_every 40)
    copy            regard train copy --steps 14000
    fashion-vit     a Hugging Face ViT (4 layers, 4 heads of 12, patches of 4) after 900 steps on Fashion-MNIST, and an
                    image of its test set as boot.png

MiniLM and the Llama of 260K parameters are real models that come with the tests; edit, moved, lines, causes and
causes-more, which act on the live page, need nothing else.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from tests.browser import chromium, page_models
from tests.browser.driving import opened
from tests.browser.serving import viewed

TARGET = page_models.ROOT / "docs" / "images"
LARGEST = 450_000  # bytes; a palette loses the rare colours of a map, so it is the last resort
DATE = "Sunday, 3rd of May 1979"


def edit(page: Any) -> None:
    """A pinned token, and the field that changes it."""
    page.get_by_test_id("token-12").click()
    page.get_by_test_id("token-edit").fill("wide")


def moved(page: Any) -> None:
    """The edited sentence beside the one before."""
    edit(page)
    page.get_by_test_id("token-change").click()
    page.get_by_test_id("differ-most").locator("button").first.wait_for()


def by_pattern(page: Any) -> None:
    """Heads coloured by their pattern."""
    page.get_by_test_id("rail-by").select_option("pattern")
    page.locator(".rail-key").first.wait_for()


def patched(page: Any) -> None:
    """A boy in the place of the girl, and what each head wrote."""
    boy = page_models.GIRL.replace("girl", "boy").replace("Lily", "Tim").replace("She", "He")
    page.get_by_test_id("against").fill(boy)
    page.get_by_test_id("patch").click()
    page.locator(".heat-cell").first.wait_for()
    page.get_by_test_id("contributions-ask").click()
    page.get_by_test_id("contributions").locator("table").wait_for()


def asked(page: Any) -> None:
    """What layers say, which inputs count, which maps matter."""
    for part in ("lens", "inputs", "maps"):
        page.get_by_test_id(f"{part}-ask").click()
        page.get_by_test_id(part).locator("table").first.wait_for()
    page.locator(".cause", has=page.get_by_test_id("lens")).scroll_into_view_if_needed()
    page.evaluate("() => document.querySelector('[data-testid=lens]').closest('.cause').scrollIntoView()")


# Names of pictures that are made by acting on the page: the scene, its view, what is done, the height of the window.
ACTS: dict[str, tuple[str, str, Callable[[Any], None], int]] = {
    "edit": ("tokens", "tokens", edit, 800),
    "moved": ("tokens", "tokens", moved, 800),
    "lines": ("lines", "lines", by_pattern, 760),
    "causes": ("girl", "causes", patched, 900),
    "causes-more": ("girl", "causes", asked, 1320),
}


def scenes(trained: Path, home: Path) -> dict[str, tuple[list[str], dict[str, Any]]]:
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
        "lines": (bert, {"site": 3, "head": 1, "v": "how=model"}),
        "girl": ([story[0], "--text", page_models.GIRL], {}),
    }


def shoot(page: Any, address: str, view: str, link: dict[str, Any], act: Callable[[Any], None] | None = None) -> bytes:
    """One view as PNG, when everything is loaded and `act` was done."""
    opened(page, address, view, theme="light", **link)
    if act is not None:
        act(page)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1200)
    return page.screenshot()


def smaller(png: bytes) -> bytes:
    """The same image with a palette where it is too large."""
    best = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(best, "PNG", optimize=True)
    if best.tell() > LARGEST:
        best = io.BytesIO()
        Image.open(io.BytesIO(png)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
            best, "PNG", optimize=True
        )
    assert best.tell() <= LARGEST, f"{best.tell()} bytes"
    return best.getvalue()


def main(folder: str, names: list[str]) -> None:
    """The requested views, or all."""
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.SWITCHES)
        page_models.story_folder(Path(home) / "stories260K")
        known = scenes(Path(folder), Path(home))
        plain = {view: (view, view, None, 800) for view in known if view not in (*ACTS, "girl")}
        for name, (scene, view, act, height) in {**plain, **ACTS}.items():
            if names and name not in names:
                continue
            arguments, link = known[scene]
            with viewed(*arguments) as address:
                page = browser.new_context(viewport={"width": 1280, "height": height}).new_page()
                page.set_default_timeout(120_000)
                content = smaller(shoot(page, address, view, link, act))
            path = TARGET / f"view-{name}.png"
            path.write_bytes(content)
            print(f"{path.relative_to(page_models.ROOT)}: {len(content) / 1000:.0f} KB", flush=True)
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
