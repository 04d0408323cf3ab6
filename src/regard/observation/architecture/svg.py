"""The picture of a network as SVG: boxes coloured by what they are, frames, wires and a legend.

Colours work on a light and on a dark page: text outside of boxes and wires are of a middle grey, boxes have a light
fill and dark text, and nothing is painted behind the picture.
"""

from __future__ import annotations

from html import escape
from math import fsum

from regard.observation.architecture.diagram import SIGNS, Diagram, DiagramNode, Frame, short
from regard.observation.architecture.geometry import Block, Measures, Point, Rect, Wire
from regard.observation.architecture.picture import arranged

LABEL, DETAIL, TITLE = 13.0, 10.5, 12.0  # sizes of letters
SIGN, MARGIN, CORNER = 22.0, 24.0, 7.0
LEAST, MOST = 148.0, 260.0  # width of a box
INK, SMALL = "#1b1f24", "#4a545f"  # on boxes
GREY, WIRE, STATE = "#75808c", "#7d8794", "#c2571a"  # around boxes
SIGN_FILL, BOLD = "#f4f5f7", ' font-weight="bold"'
FILLS = {
    "attention": ("#cfe4f5", "#2a78b0"),
    "norm": ("#e8e2f1", "#7d6aa3"),
    "embedding": ("#fbe0cb", "#c2683a"),
    "recurrent": ("#cfeade", "#2b8c68"),
    "map": ("#f5e9c4", "#a07a18"),
    "memory": ("#f6d5dd", "#b04a66"),
}
MEANINGS = {
    "embedding": "embedding, positions",
    "norm": "normalisation",
    "attention": "attention",
    "map": "linear maps",
    "recurrent": "recurrent cells",
    "memory": "memory, learned rows",
}
NAMES = {"∥": "concatenation", "×": "product", "·": "matrix product"}
FONT = "'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"
_WIDTHS = {  # of the letters of DejaVu Sans, the widest of these fonts, in parts of the size
    0.32: "'ijlIJ,. ·/:;|",
    0.41: "f-t()[]!r",
    0.56: 'szc_"*?L∥',
    0.6: "kFvxyP",
    0.64: "aoeTYbdghnpquESK0123456789",
    0.79: "ABCDGHNOQRUVXZ&",
    0.87: "w#+<=>~→×↻M",
}
_WIDTH = {letter: width for width, letters in _WIDTHS.items() for letter in letters}


def text_width(text: str, size: float, bold: bool = False) -> float:
    """How wide a text is, at most."""
    return fsum(_WIDTH.get(letter, 1.0) for letter in text) * size * (1.12 if bold else 1.0)


def detail_of(node: DiagramNode) -> str:
    """The second line of a box: sizes, and how many parameters, where that fits."""
    count = short(node.parameters) if node.parameters >= 1000 else ""
    line = " · ".join(filter(None, (node.detail, count)))
    return line if text_width(line, DETAIL) <= MOST - 20 else node.detail


def title_of(frame: Frame) -> str:
    """The title of a frame: its name, how often it is repeated, and what its loop goes over."""
    times = f" × {frame.repeat}" if frame.repeat > 1 else ""
    return " · ".join(filter(None, (f"{frame.label}{times}".strip(), f"↻ {frame.loop}" if frame.loop else "")))


def fitted(text: str, size: float, room: float) -> str:
    """The text, cut where it would be too wide."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(f"{text}…", size) > room:
        text = text[:-1]
    return f"{text.rstrip()}…"


def _box(node: DiagramNode) -> tuple[float, float]:
    if node.kind in SIGNS:
        return SIGN, SIGN
    if node.kind in ("input", "output"):
        return max(40.0, text_width(node.label, 12.0)), 18.0
    widest = max(text_width(node.label, LABEL), text_width(detail_of(node), DETAIL)) + 20
    return min(MOST, max(LEAST, widest)), 42.0 if detail_of(node) else 32.0


def _title(frame: Frame) -> float:
    return text_width(title_of(frame), TITLE, bold=True) + 4


MEASURES = Measures(
    box=_box,
    label=_title,
    gap=20.0,
    enter=10.0,
    track=13.0,
    gutter=13.0,
    pad=16.0,
    foot=14.0,
    title=26.0,
    beside=22.0,
    lane=56.0,
    port=26.0,
)


def svg(diagram: Diagram, note: str = "") -> str:
    """The picture as the text of an SVG file; `note`: what else to say below its name."""
    block = arranged(diagram, MEASURES)
    head = 44.0
    legend, legend_width, legend_height = _legend(diagram, max(block.right, 340.0))
    name = diagram.root.label
    counted = f"{diagram.parameters:,} parameters" if diagram.parameters else "no parameters"
    counted = ", ".join(filter(None, (counted, note)))
    texts = text_width(name, 17, bold=True), text_width(counted, 11)
    width = max(block.right, legend_width, *texts) + 2 * MARGIN
    left = (width - block.right) / 2
    height = head + block.height + 46 + legend_height + MARGIN
    drawn = "\n".join(_drawn(block, left, head + 12))
    below = head + 12 + block.height + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="{FONT}" role="img" aria-labelledby="title description">\n'
        f'<title id="title">{escape(name)}</title>\n<desc id="description">{escape(description(diagram))}</desc>\n'
        f"<defs>{_arrow('arrow', WIRE)}{_arrow('state', STATE)}</defs>\n"
        f"{_text(MARGIN, MARGIN + 4, name, 17, GREY, 'start', BOLD)}\n"
        f"{_text(MARGIN, MARGIN + 20, counted, 11, GREY, 'start')}\n"
        f'{drawn}\n<g transform="translate({(width - legend_width) / 2:.1f} {below:.1f})">{legend}</g>\n</svg>\n'
    )


def description(diagram: Diagram) -> str:
    """What the picture shows, in words."""
    fed = [f"{edge.source.label} {'returns to' if edge.back else 'to'} {edge.target.label}" for edge in diagram.edges]
    return f"{diagram.root.label}: {'; '.join(dict.fromkeys(fed))}."


def _drawn(block: Block, x: float, y: float) -> list[str]:
    picture = Block()
    picture.add(block, x, y)
    frames = [_frame(rect, rect.thing) for rect in picture.rects if isinstance(rect.thing, Frame)]
    wires = [_wire(wire) for wire in picture.wires]
    dots = [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{WIRE}"/>' for a, b in dict.fromkeys(picture.dots)]
    boxes = [_node(rect, rect.thing) for rect in picture.rects if isinstance(rect.thing, DiagramNode)]
    return [*frames, *wires, *dots, *boxes]


def _frame(rect: Rect, frame: Frame) -> str:
    dashes = f' stroke="{STATE}" stroke-dasharray="7 4"' if frame.loop else f' stroke="{GREY}"'
    dashes += ' stroke-opacity="0.6"'
    colour = STATE if frame.loop and not frame.label else GREY
    title = fitted(title_of(frame), TITLE * 1.12, rect.width - 22)
    return (
        f'<g class="frame"><rect {_place(rect)} rx="10" fill="{GREY}" fill-opacity="0.07"{dashes}/>'
        f"{_text(rect.x + 11, rect.y + 17, title, TITLE, colour, 'start', BOLD)}</g>"
    )


def _node(rect: Rect, node: DiagramNode) -> str:
    middle, y = rect.x + rect.width / 2, rect.y
    if node.kind in ("input", "output"):
        return _text(middle, y + 13, node.label, 12, GREY, "middle", ' font-style="italic"')
    if node.kind in SIGNS:
        r = SIGN / 2
        circle = f'<circle cx="{middle:.1f}" cy="{y + r:.1f}" r="{r - 0.6:g}" fill="{SIGN_FILL}" stroke="{WIRE}"/>'
        sign = _text(middle, y + r + 5.2, node.kind, 15, INK)
        return f'<g class="sign"><title>{escape(node.label)}</title>{circle}{sign}</g>'
    fill, border = FILLS[node.kind]
    dashes = "" if node.used else ' stroke-dasharray="4 3"'
    room, detail = rect.width - 10, detail_of(node)
    title = ", ".join(filter(None, (node.path, f"{node.parameters:,} parameters" if node.parameters else "")))
    label = _text(middle, y + (18 if detail else 20.5), fitted(node.label, LABEL, room), LABEL, INK)
    below = _text(middle, y + 33, fitted(detail, DETAIL, room), DETAIL, SMALL) if detail else ""
    shape = f'<rect {_place(rect)} rx="6" fill="{fill}" stroke="{border}" stroke-width="1.3"{dashes}/>'
    return f'<g class="box"><title>{escape(title)}</title>{shape}{label}{below}</g>'


def _place(rect: Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'


def _wire(wire: Wire) -> str:
    colour, name = (STATE, "state") if wire.back else (WIRE, "arrow")
    head = f' marker-end="url(#{name})"' if wire.arrow else ""
    dashes = ' stroke-dasharray="5 3"' if wire.back else ""
    return f'<path d="{_rounded(wire.points)}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}{head}/>'


def _rounded(points: list[Point]) -> str:
    """A path through points with rounded corners."""
    kept = [p for n, p in enumerate(points) if n == 0 or p != points[n - 1]]
    path = [f"M{kept[0][0]:.1f},{kept[0][1]:.1f}"]
    for before, corner, after in zip(kept, kept[1:], kept[2:], strict=False):
        reach = min(CORNER, _far(before, corner) / 2, _far(corner, after) / 2)
        a, b = _toward(corner, before, reach), _toward(corner, after, reach)
        path.append(f"L{a[0]:.1f},{a[1]:.1f} Q{corner[0]:.1f},{corner[1]:.1f} {b[0]:.1f},{b[1]:.1f}")
    return " ".join([*path, f"L{kept[-1][0]:.1f},{kept[-1][1]:.1f}"])


def _far(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _toward(a: Point, b: Point, reach: float) -> Point:
    share = reach / max(_far(a, b), 1e-9)
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _text(x: float, y: float, words: str, size: float, colour: str, anchor: str = "middle", more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{more}>'
        f"{escape(words)}</text>"
    )


def _arrow(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="6.5" markerHeight="6.5" orient="auto">'
        f'<path d="M0,0.4 L8,4 L0,7.6 z" fill="{colour}"/></marker>'
    )


def _legend(diagram: Diagram, room: float) -> tuple[str, float, float]:
    """The meaning of each colour, sign and line in the picture in lines of this width, and how wide and high it is."""
    kinds = {node.kind for node in diagram.root.nodes()}
    x, y, widest, elements = 0.0, 0.0, 0.0, list[str]()
    keys = [(kind, meaning) for kind, meaning in {**MEANINGS, **NAMES}.items() if kind in kinds]
    if any(node.parameters >= 1000 for node in diagram.root.nodes()):
        keys.append(("k", "thousand parameters"))
    if any(edge.back for edge in diagram.edges):
        keys.append(("", "from the step before"))
    for kind, meaning in keys:
        wide = 17 + text_width(meaning, 10.5)
        if x and x + wide > room:
            x, y = 0.0, y + 19
        if kind in FILLS:
            fill, border = FILLS[kind]
            square = f'width="12" height="12" rx="3" fill="{fill}" stroke="{border}"'
            elements.append(f'<rect x="{x:.1f}" y="{y:.1f}" {square}/>')
        elif kind:
            elements.append(_text(x + 6, y + 10, kind, 12, GREY))
        else:
            line = f'stroke="{STATE}" stroke-width="1.5" stroke-dasharray="5 3" marker-end="url(#state)"'
            elements.append(f'<path d="M{x - 6:.1f},{y + 6:.1f} h19" {line}/>')
        elements.append(_text(x + 17, y + 10, meaning, 10.5, GREY, "start"))
        widest = max(widest, x + wide)
        x += wide + 16
    return "".join(elements), widest, y + 12
