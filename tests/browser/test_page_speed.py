"""A map of 4,096 × 4,096 stays fluid, with WebGL2 and without."""

import pytest

from tests.browser.driving import opened, pixels, settled, until

BAR = 30  # frames a second, in headless Chromium on software GL, which uses all processors
PROCESSORS = 2  # of the machine the bar was set for

MOVING = """async ([what, seconds]) => {
    const plot = document.querySelector('[data-testid=matrix]');
    const box = plot.getBoundingClientRect();
    const shared = { bubbles: true, cancelable: true };
    const mouse = { ...shared, pointerId: 1, isPrimary: true, button: 0, buttons: 1, pointerType: 'mouse' };
    const pointer = (name, x, y) =>
        plot.dispatchEvent(new PointerEvent(name, { ...mouse, clientX: box.x + x, clientY: box.y + y }));
    const begin = performance.now(), drawn = window.__regard.frames().count;
    if (what === 'pan') pointer('pointerdown', 300, 300);
    while (performance.now() - begin < seconds * 1000) {
        const turn = (performance.now() - begin) / 400;
        if (what === 'pan') pointer('pointermove', 300 + 120 * Math.sin(turn), 300 + 90 * Math.cos(turn));
        else plot.dispatchEvent(new WheelEvent('wheel', { ...shared, deltaY: Math.sin(turn) > 0 ? -20 : 20,
            clientX: box.x + 250, clientY: box.y + 250 }));
        await new Promise(requestAnimationFrame);
    }
    if (what === 'pan') pointer('pointerup', 300, 300);
    const frames = window.__regard.frames();
    const count = frames.count - drawn;
    return { rate: count / ((performance.now() - begin) / 1000), frames: count, painter: frames.painter };
}"""

SCROLLING = """async () => {
    const view = document.querySelector('.lines-window'), drawn = window.__regard.lines().count;
    const begin = performance.now();
    while (performance.now() - begin < 1000) {
        view.scrollTop = 2000 + 1500 * Math.sin((performance.now() - begin) / 400);
        await new Promise(requestAnimationFrame);
    }
    const frames = window.__regard.lines().count - drawn;
    return { frames, rate: frames / ((performance.now() - begin) / 1000) };
}"""


@pytest.fixture
def address(page_models):
    return page_models["long_text"]


def zoomed_in(page, address, **more):
    opened(page, address, "matrix", site=0, head=2, **more)
    for _ in range(4):
        page.keyboard.press("+")
    page.wait_for_timeout(500)
    settled(page)


def moved(page, what, bar, tries=3):
    """Frames drawn in a second, and what each cost the busiest process of the browser in processor time.

    Other work on the machine takes frames away from every program; what a frame costs stays the same. So a page passes
    that is quick, or whose frames are cheap enough to be.
    """
    session, found = page.context.browser.new_browser_cdp_session(), {"rate": 0.0, "cost": 1.0}
    for _ in range(tries):
        before = spent(session)
        one = page.evaluate(MOVING, [what, 1])
        busiest = max(seconds - before.get(process, 0) for process, seconds in spent(session).items())
        one["cost"] = busiest / max(1, one["frames"])
        found = min(found, one, key=lambda candidate: (candidate["cost"], -candidate["rate"]))
        if one["rate"] >= bar:
            return one
    return found


def spent(session):
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return {process["id"]: process["cpuTime"] for process in processes}


def quick(found, bar):
    return found["rate"] >= bar or found["cost"] <= PROCESSORS / bar


def test_panning_and_zooming_keep_thirty_frames_a_second(page, address):
    zoomed_in(page, address)
    panned, zoomed = moved(page, "pan", BAR), moved(page, "zoom", BAR)
    assert panned["painter"] == "webgl2"
    assert quick(panned, BAR), panned
    assert quick(zoomed, BAR), zoomed


def test_without_webgl_the_canvas_draws(page, address):
    zoomed_in(page, address, canvas=1)
    panned = moved(page, "pan", BAR / 2)
    assert panned["painter"] == "canvas"
    assert quick(panned, BAR / 2), panned


def test_webgl_and_canvas_draw_the_same_pixels(page, address):
    """The same head, pixel by pixel."""
    pictures = []
    for more in ({}, {"canvas": 1}):
        opened(page, address, "matrix", site=0, head=1, theme="light", **more)
        page.mouse.move(5, 5)
        page.wait_for_timeout(300)
        pictures.append(pixels(page))
    difference = abs(pictures[0] - pictures[1])
    assert difference.mean() < 1, difference.mean()


def test_lines_of_twelve_layers_keep_thirty_frames_a_second(page, page_models):
    opened(page, page_models["lines_512"], "lines", v="how=model")
    until(page, "window.__regard.lines && window.__regard.lines().columns === 13")
    session, found = page.context.browser.new_browser_cdp_session(), {"rate": 0.0, "cost": 1.0}
    for _ in range(3):
        before = spent(session)
        one = page.evaluate(SCROLLING)
        one["cost"] = max(s - before.get(p, 0) for p, s in spent(session).items()) / max(1, one["frames"])
        found = min(found, one, key=lambda candidate: candidate["cost"])
        if quick(found, BAR):
            break
    assert quick(found, BAR), found
