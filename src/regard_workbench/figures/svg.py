"""A figure as files for papers, and as inline SVG for the report: small, with the page's colours, reproducible."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from regard.support.paper_figure import PaperFigure
from regard_workbench.figures.style import NAMED, Drawing, Key, Keys, style
from regard_workbench.tasks.figures.colours import COLOURS, GRID, INK, MUTED
from regard_workbench.training.run_folder import durable

_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)},
}
_LINE = 0.19  # inches of a line in a legend
_GROUP = re.compile(r"key(\d+)-[\w-]+")
_REFERENCE = re.compile(r"^#(.+)$|^url\(#(.+)\)$")
_LONG = re.compile(r"-?\d+\.\d{3,}")


def publish(drawing: Drawing, folder: Path, keys: Keys | None = None) -> str:
    """The figure as inline SVG, and as SVG and PDF files in `folder`.

    With `keys`, files of a figure that shows numbers instead of names get a legend; the report has its own.
    """
    figure, source = drawing.figure, _rendered(drawing.figure, "svg")
    figure.set_layout_engine("none")  # the layout is done; repeating it takes as long as drawing
    shown = ET.tostring(_inlined(drawing, source), encoding="unicode")
    if keys is not None and len(keys) > NAMED:
        figure.set_layout_engine("constrained")
        with style():
            _legend(figure, keys)
        source = _rendered(figure, "svg")
        figure.set_layout_engine("none")
    durable.replace(folder / f"{drawing.name}.svg", source)
    durable.replace(folder / f"{drawing.name}.pdf", _rendered(figure, "pdf"))
    return shown


def inline(drawing: Drawing) -> str:
    """The figure as an inline <svg>; without a text alternative it is hidden from screen readers."""
    return ET.tostring(_inlined(drawing, _rendered(drawing.figure, "svg")), encoding="unicode")


def swatch(key: Key) -> str:
    """A sample of a contestant's line and marker, as a <symbol> that a page can reuse."""
    with style():
        figure = PaperFigure(figsize=(0.36, 0.14))
        frame = figure.add_axes((0, 0, 1, 1))
        frame.set_axis_off()
        frame.plot(
            [0, 1, 2],
            [0, 0, 0],
            color=key.colour,
            linestyle=key.dash,
            linewidth=1.6,
            marker=key.marker,
            markersize=4.5,
            markevery=[1],
        )
        frame.set(xlim=(0.05, 1.95), ylim=(-1, 1))
    name = f"swatch{key.number}"
    element = _inlined(Drawing(name, "", "", figure), _rendered(figure, "svg"))
    element.tag, element.attrib = "symbol", {"id": name, "viewBox": element.attrib["viewBox"]}
    return ET.tostring(element, encoding="unicode")


def _rendered(figure: Figure, kind: str) -> bytes:
    # No date and a fixed salt for ids, so that the same figure gives the same bytes.
    nameless = {"Date": None, "Creator": None} if kind == "svg" else {"CreationDate": None, "Creator": None}
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser may have fonts that this machine lacks
        figure.savefig(buffer, format=kind, metadata=nameless, transparent=True)
    return buffer.getvalue()


def _inlined(drawing: Drawing, source: bytes) -> ET.Element:
    """matplotlib's SVG, reduced to what an HTML page needs, with accessible names and tooltips."""
    root = ET.fromstring(source)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # inline SVG needs no namespaces
        element.attrib = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    box = root.attrib["viewBox"]
    root.attrib = {"class": "chart", "viewBox": box}
    root.attrib |= {"role": "img", "aria-label": drawing.alt} if drawing.alt else {"aria-hidden": "true"}
    used = {name for element in root.iter() for value in element.attrib.values() if (name := _referred(value))}
    for element in list(root.iter()):
        _simplify(element, drawing, used)
    _unwrap(root)
    return root


def _referred(value: str) -> str:
    match = _REFERENCE.match(value)
    return (match[1] or match[2]) if match else ""


def _simplify(element: ET.Element, drawing: Drawing, used: set[str]) -> None:
    """Make ids unique on the page and drop unused ones; shorten numbers; use the page's colours."""
    attributes = element.attrib
    group = attributes.pop("id", "")
    if group in used:
        attributes["id"] = f"{drawing.name}-{group}"
    elif match := _GROUP.fullmatch(group):
        attributes |= {"class": "key", "data-key": match[1], "data-part": group.partition("-")[2]}
        if group in drawing.tips:
            title = ET.Element("title")
            title.text = drawing.tips[group]
            element.insert(0, title)
    for name, value in attributes.items():
        if referred := _referred(value):
            attributes[name] = value.replace(f"#{referred}", f"#{drawing.name}-{referred}")
        elif name in ("d", "x", "y", "transform") and element.tag != "image":
            attributes[name] = " ".join(_LONG.sub(_rounded, value).split())
        elif name == "style":
            attributes[name] = _styled(value)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if not (element.text or "").strip():
        element.text = None
    element.tail = None


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _styled(style: str) -> str:
    """The same style with the page's colours and font."""
    declarations = [
        [word.strip() for word in declaration.split(":", 1)] for declaration in style.split(";") if declaration.strip()
    ]
    kept = [f"{name}:{_VARIABLES.get(value, value)}" for name, value in declarations if name != "font-family"]
    return ";".join(kept)


def _unwrap(parent: ET.Element) -> None:
    """Replace groups without attributes by their children."""
    children: list[ET.Element] = []
    for child in list(parent):
        _unwrap(child)
        bare = child.tag in ("g", "defs") and not child.attrib
        if child.tag == "defs" and len(child):
            children.append(child)
        elif bare:
            children.extend(child)
        else:
            children.append(child)
    parent[:] = children


def _legend(figure: Figure, keys: Keys) -> None:
    """Add numbers and names below the figure, and enlarge it accordingly."""
    columns = 2
    lines = -(-len(keys) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + _LINE * lines)
    handles = [
        Line2D([], [], color=key.colour, linestyle=key.dash, marker=key.marker, markersize=3.2, linewidth=1.5)
        for key in keys.values()
    ]
    names = [f"{key.number}  {key.name}" for key in keys.values()]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=7)
