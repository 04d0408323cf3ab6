"""Tables for notebooks: what `_repr_html_` of results and plans is made of."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """A table as HTML; every text is escaped."""
    pieces = [f"<strong>{html.escape(title)}</strong>"] if title else []
    pieces.append('<table style="border-collapse:collapse"><thead>')
    pieces.append(_row("th", heads))
    pieces.append("</thead><tbody>")
    pieces += [_row("td", row) for row in rows]
    pieces.append("</tbody></table>")
    return "".join(pieces)


def html_frame(page: str, title: str) -> str:
    """A whole page in a frame of its own, so that its styles and scripts do not reach the notebook."""
    return (
        f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(title)}" '
        'style="width:100%;height:720px;border:0"></iframe>'
    )


def _row(cell: str, values: Sequence[object]) -> str:
    styles = [f"{_CELL};white-space:nowrap"] * (len(values) - 1) + [_CELL]  # only the last column breaks its lines
    pairs = zip(styles, values, strict=True)
    return (
        "<tr>"
        + "".join(f'<{cell} style="{style}">{html.escape(str(content))}</{cell}>' for style, content in pairs)
        + "</tr>"
    )
