"""The fonts that the page embeds in a saved PDF: DejaVu Sans, which comes with matplotlib, with fewer characters.

Publishers refuse PDFs without their fonts. A text with other characters (Chinese, emoji) becomes a picture there.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

FILES = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")  # regular, bold
_RANGES = (
    (0x20, 0x7E),
    (0xA0, 0x17F),
    (0x370, 0x3FF),
    (0x400, 0x45F),
    (0x2010, 0x203A),
    (0x2190, 0x2193),
    (0x2200, 0x2265),
)
_MORE = "€™␣⏎⇥␍□●○■▲▼✓✗�"
THOUSAND = 1000  # units of a PDF's font in one em


@cache
def page_font(bold: bool) -> bytes:
    """A line of JSON with what a PDF says of the font (sizes in thousandths of an em), then the font file."""
    import matplotlib
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / FILES[bold]
    options = Options(hinting=False, layout_features=[], notdef_outline=True, glyph_names=False)
    options.drop_tables += ["GSUB", "GPOS", "GDEF", "kern", "MATH", "FFTM"]
    cutter = Subsetter(options)
    cutter.populate(unicodes=[code for low, high in _RANGES for code in range(low, high + 1)], text=_MORE)
    font: Any = TTFont(path)
    cutter.subset(font)
    em = THOUSAND / font["head"].unitsPerEm
    head, across = font["head"], font["hhea"]
    header = {
        "name": path.stem,
        "box": [round(em * number) for number in (head.xMin, head.yMin, head.xMax, head.yMax)],
        "ascent": round(em * across.ascent),
        "descent": round(em * across.descent),
        "capitals": round(em * getattr(font["OS/2"], "sCapHeight", across.ascent)),
        "glyphs": {
            chr(code): [font.getGlyphID(name), round(em * font["hmtx"][name][0])]
            for code, name in font.getBestCmap().items()
        },
    }
    file = io.BytesIO()
    font.save(file)
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" + file.getvalue()
