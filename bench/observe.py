"""Measurements of `observe` and the viewer: exactness, cost, size, speed. `python -m bench.observe [NAME …]`

Names: exact, overhead, bytes, picture, frames, patching, typed, views. Run it on a machine that does nothing else; all
from picture on but patching need a browser (`make browser`). Overhead and patching are counted in processor time,
too, which other work on the machine hardly changes; the load is printed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tests.browser import page_models
from tests.browser.driving import opened, settled, until
from tests.browser.serving import served
from tests.browser.test_page_speed import MOVING
from tests.observation import peers
from torch import nn

import regard

Row = tuple[str, str, str]  # what, measured, bar
ROUNDS = 15


def exact() -> Iterator[Row]:
    """Weights from fused attention against eager attention of the same model, float32."""
    for kind in ("bert", "gpt2", "llama", "mistral", "t5", "vit", "albert"):
        model, given = peers.small(kind), peers.inputs(kind)
        yield f"{kind}, small random config, sdpa", _difference(model, **given), "≤ 1e-5"
    for kind in ("bert", "llama", "gemma2"):
        model, given = peers.small(kind), peers.inputs(kind)
        with peers.uncompiled():
            found = _difference(peers.with_attention(model, "flex_attention"), **given)
        yield f"{kind}, small random config, flex_attention", found, "≤ 1e-5"
    yield "MiniLM, real weights, 15 tokens, sdpa", _difference(*_real(page_models.minilm_folder())), "≤ 1e-5"
    if (peers.SHARED / "data" / "models" / "stories260k").exists():
        yield "stories260K, real weights, sdpa", _difference(*_real(page_models.story_folder())), "≤ 1e-5"


def _real(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

    kind = AutoModel if "minilm" in str(folder) else AutoModelForCausalLM
    model = kind.from_pretrained(folder, attn_implementation="sdpa").eval()
    return model, dict(AutoTokenizer.from_pretrained(folder)(page_models.SENTENCE, return_tensors="pt"))


@torch.no_grad()
def _difference(model: Any, given: dict[str, Any] | None = None, **named: Any) -> str:
    named = {**(given or {}), **named}
    named.pop("token_type_ids", None)
    maps = peers.eager_maps(model, **named)
    with regard.observe(model) as seen:
        model(**named)
    pairs = zip(seen.names(), maps, strict=True)
    return f"{max(peers.largest(seen[name].weights(), expected) for name, expected in pairs):.1e}"


def overhead() -> Iterator[Row]:
    """A forward pass inside `observe`, enter and exit included, against a plain one: medians, one thread."""
    torch.set_num_threads(1)
    from transformers import AutoModel, LlamaConfig, LlamaModel

    bert = AutoModel.from_pretrained(page_models.minilm_folder()).eval()
    for length in (128, 512):
        tokens = torch.randint(1000, 20000, (1, length))
        yield f"MiniLM, {length} tokens", _ratio(bert, tokens), "≤ 1.10"
    sizes = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4}
    llama = LlamaModel(LlamaConfig(vocab_size=1000, intermediate_size=1376, **sizes)).eval()
    yield "Llama, 6 layers × 512, 256 tokens", _ratio(llama, torch.randint(3, 999, (1, 256))), "≤ 1.10"
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).eval()
    yield ("nn.TransformerEncoder (fast path), 6 × 512, 256", _ratio(encoder, torch.randn(1, 256, 512)), "≤ 1.10")


@torch.no_grad()
def _ratio(model: nn.Module, given: torch.Tensor) -> str:
    plain, observed = [], []
    for _ in range(ROUNDS + 2):
        plain.append(_seconds(lambda: model(given), time.process_time))
        observed.append(_seconds(lambda: _observed(model, given), time.process_time))
    before, after = statistics.median(plain[2:]), statistics.median(observed[2:])
    return f"{after / before:.3f} ({before * 1e3:.1f} → {after * 1e3:.1f} ms)"


def _observed(model: nn.Module, given: torch.Tensor) -> None:
    with regard.observe(model):
        model(given)


def _seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def bytes_of_a_page() -> Iterator[Row]:
    """One HTML file with everything of 12 layers × 12 heads × 512 tokens."""
    from regard_workbench.viewer.export import export

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        page_model = page_models.large(512, 12, 12)
        spent = _seconds(lambda: export(page_model, path))
        size = path.stat().st_size
    words = "exported page, 12 layers × 12 heads × 512 tokens"
    yield words, f"{size / 1e6:.2f} MB, written in {spent:.1f} s", "≤ 5 MB (BertViz 1.7 GB)"


@contextmanager
def _page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright
    from tests.browser import chromium

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.SWITCHES)
        yield browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        browser.close()


def picture() -> Iterator[Row]:
    """From opening the URL to a finished picture, after the forward pass of 4,096 tokens and 12 × 12 heads."""
    for view, words in (("matrix", "one head in full"), ("overview", "all 144 heads, rows sampled")):
        with served() as found, _page() as page:
            address = found["large"]
            begin = time.perf_counter()
            opened(page, address, view, site=5, head=2)
            if view == "overview":
                cells = "document.querySelectorAll('[data-testid^=cell-] canvas').length === 144"
                until(page, f"{cells} && !document.querySelector('.waiting')")
            spent = time.perf_counter() - begin
        yield f"first picture, 4,096 tokens, 12 × 12 heads: {words}", f"{spent:.2f} s", "≤ 3 s"


def frames() -> Iterator[Row]:
    """Frames drawn in a second on a map of 4,096 × 4,096, in headless Chromium on software GL."""
    with served() as found, _page() as page:
        for canvas in ({}, {"canvas": 1}):
            opened(page, found["long_text"], "matrix", site=0, head=2, **canvas)
            for _ in range(4):
                page.keyboard.press("+")
            page.wait_for_timeout(800)
            settled(page)
            for what, words in (("pan", "panning"), ("zoom", "zooming")):
                moved = page.evaluate(MOVING, [what, 4])
                yield f"{words} a 4k × 4k head, {moved['painter']}", f"{moved['rate']:.0f} frames/s", "≥ 30"


def patching() -> Iterator[Row]:
    """Every head of 6 × 12 at each of 20 tokens: in batches of copies, and with one forward pass for each patch."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=97, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    torch.manual_seed(5)
    model = transformers.BertForMaskedLM(config).eval()
    clean = torch.randint(0, 97, (1, 20), generator=torch.Generator().manual_seed(6))
    corrupted = clean.clone()
    corrupted[0, 7] = (clean[0, 7] + 13) % 97
    with torch.no_grad(), regard.observe(model) as seen:
        model(clean)

    def sweep(**options: Any) -> tuple[float, float, Any]:
        cpu, wall = time.process_time(), time.perf_counter()
        found = seen.patch(clean, corrupted, positions="each", answer=3, other=5, **options)
        return time.perf_counter() - wall, time.process_time() - cpu, found

    sweep(sites=seen.names()[:1])  # warm
    wall, cpu, found = sweep()
    each_wall, each_cpu, each = sweep(together=1)
    torch.testing.assert_close(found.values, each.values, rtol=0, atol=1e-4)
    cpu_start, start = time.process_time(), time.perf_counter()
    with torch.no_grad():
        for _ in range(50):
            model(clean)
    plain, plain_cpu = (
        (now - then) / 50 for now, then in ((time.perf_counter(), start), (time.process_time(), cpu_start))
    )
    count = found.values.numel()
    words = f"patching sweep, 6 × 12 heads × 20 tokens, {count:,} patches, {found.forwards} forward passes"
    yield words, f"{wall:.1f} s ({cpu:.1f} s of processor time)", "≤ 60 s"
    told = f"{each_wall / wall:.1f} × ({each_cpu / cpu:.1f} × in processor time)"
    yield "… against one forward pass for each patch", told, "≥ 3 ×"
    told = f"{plain * count / wall:.1f} × ({plain_cpu * count / cpu:.1f} × in processor time)"
    yield "… against as many plain forward passes, without any patch", told, ""


def typed() -> Iterator[Row]:
    """From Enter in the text box to the first picture of the new sentence: MiniLM, 30 tokens."""
    words = "the old man who lived in the small house near the river walked slowly to the market every morning "
    words += "because he loved fresh bread and hot"
    drawn = "document.querySelectorAll('[data-testid^=cell-] canvas').length === 72"
    with served() as found, _page() as page:
        opened(page, found["minilm"], "overview")
        spent, busy = [], []
        session = page.context.browser.new_browser_cdp_session()
        for number in range(ROUNDS):
            page.get_by_test_id("input-text").fill(f"{words} {'tea' if number % 2 else 'milk'}.")
            before = page.evaluate("() => window.__regard.input")
            worked = _worked(found.process.process.pid, session)
            begin = time.perf_counter()
            page.get_by_test_id("input-text").press("Enter")
            until(page, f"window.__regard.input > given && {drawn} && !document.querySelector('.waiting')", before)
            spent.append(time.perf_counter() - begin)
            busy.append(_worked(found.process.process.pid, session) - worked)
        count = page.evaluate("() => fetch('/api/scene').then(r => r.json()).then(s => s.tokens.tokens.length)")
    told = f"{statistics.median(spent):.2f} s, from {min(spent):.2f} to {max(spent):.2f}; "
    told += f"{statistics.median(busy):.2f} s of processor time of server and browser"
    yield f"all 72 heads after typing a sentence: MiniLM, {count} tokens, median of {ROUNDS}", told, "≤ 0.5 s"


def _worked(server: int, browser: Any) -> float:
    """Processor seconds of the server and of all processes of the browser so far (Linux)."""
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    processes = browser.send("SystemInfo.getProcessInfo")["processInfo"]
    return own + sum(float(process["cpuTime"]) for process in processes)


POINTING = """async (seconds) => {
    const view = document.querySelector('main.view'), box = view.getBoundingClientRect();
    const begin = performance.now();
    let frames = 0;
    while (performance.now() - begin < seconds * 1000) {
        const turn = (performance.now() - begin) / 500;
        const x = box.x + box.width * (0.5 + 0.45 * Math.sin(turn));
        const y = box.y + box.height * (0.5 + 0.45 * Math.cos(1.3 * turn));
        const given = { clientX: x, clientY: y, pointerType: 'mouse' };
        const under = document.elementFromPoint(x, y) || view;
        for (const name of ['pointerover', 'pointerenter', 'pointermove']) {
            under.dispatchEvent(new PointerEvent(name, { ...given, bubbles: name !== 'pointerenter' }));
        }
        view.scrollTop = 200 + 200 * Math.sin(turn);
        await new Promise(requestAnimationFrame);
        frames += 1;
    }
    return frames / ((performance.now() - begin) / 1000);
}"""


def views() -> Iterator[Row]:
    """Frames in a second of every view while the pointer moves over it and it scrolls."""
    shown = [("minilm", name) for name in ("overview", "matrix", "tokens", "lines", "causes")]
    shown += [("vision", "image"), ("alignment", "alignment"), ("timeline", "timeline"), ("compare", "compare")]
    shown += [("memory", "memory"), ("graph", "graph"), ("written", "steps")]
    with served() as found, _page() as page:
        for model, view in shown:
            opened(page, found[model], view)
            page.wait_for_timeout(800)
            yield (f"{view} ({model}), pointer and scrolling", f"{page.evaluate(POINTING, 3):.0f} frames/s", "≥ 30")


PARTS = {
    "exact": exact,
    "overhead": overhead,
    "bytes": bytes_of_a_page,
    "picture": picture,
    "frames": frames,
    "patching": patching,
    "typed": typed,
    "views": views,
}


def main(names: list[str]) -> None:
    """Print each row as soon as it is measured."""
    unknown = set(names) - set(PARTS)
    if unknown:
        sys.exit(f"{', '.join(sorted(unknown))}: unknown. Known: {', '.join(PARTS)}.")
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}\n\n"
        "| what | measured | bar |\n|---|---|---|"
    )
    for name in names or PARTS:
        for row in PARTS[name]():
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
