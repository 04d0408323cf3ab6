// A TrueType font inside a PDF: its file, the widths of the characters that are used, and how they are read back as text.

const SUBSET = "REGARD+"; // says that the file holds a part of the font

/** A text as glyph numbers: `{hex, ems}`, or null where the font lacks a character. */
export function encoded(text, font) {
  let [hex, width] = ["", 0];
  for (const sign of text) {
    const glyph = font.glyphs[sign];
    if (!glyph) return null;
    hex += hexOf(glyph[0]);
    width += glyph[1];
  }
  return { hex, ems: width / 1000 };
}

/** Write a font with the characters that were used; a promise of its object's number. */
export async function fontObjects(out, font, used, deflated) {
  const name = `${SUBSET}${font.name}`;
  const glyphs = [...used].map((sign) => [sign, font.glyphs[sign]]);
  const file = out.stream(`/Filter /FlateDecode /Length1 ${font.file.length}`, await deflated(font.file));
  const described = out.plain(
    `<< /Type /FontDescriptor /FontName /${name} /Flags 4 /FontBBox [${font.box.join(" ")}] /ItalicAngle 0 ` +
      `/Ascent ${font.ascent} /Descent ${font.descent} /CapHeight ${font.capitals} /StemV 80 /FontFile2 ${file} 0 R >>`,
  );
  const widths = glyphs.map(([, [glyph, width]]) => `${glyph} [${width}]`).join(" ");
  const inner = out.plain(
    `<< /Type /Font /Subtype /CIDFontType2 /BaseFont /${name} /CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> ` +
      `/FontDescriptor ${described} 0 R /DW 600 /W [${widths}] /CIDToGIDMap /Identity >>`,
  );
  const readBack = out.stream("/Filter /FlateDecode", await deflated(new TextEncoder().encode(characterMap(glyphs))));
  return out.plain(
    `<< /Type /Font /Subtype /Type0 /BaseFont /${name} /Encoding /Identity-H /DescendantFonts [${inner} 0 R] /ToUnicode ${readBack} 0 R >>`,
  );
}

const BLOCK = 100; // entries of a character map in one block, at most

/** The CMap by which a reader copies text out of the PDF. */
function characterMap(glyphs) {
  const lines = glyphs.map(([sign, [glyph]]) => `<${hexOf(glyph)}> <${hexOf(sign.codePointAt(0))}>`);
  const blocks = [];
  for (let at = 0; at < lines.length; at += BLOCK) {
    const part = lines.slice(at, at + BLOCK);
    blocks.push(`${part.length} beginbfchar\n${part.join("\n")}\nendbfchar`);
  }
  return `/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def
/CMapName /Adobe-Identity-UCS def
/CMapType 2 def
1 begincodespacerange
<0000> <ffff>
endcodespacerange
${blocks.join("\n")}
endcmap
CMapName currentdict /CMap defineresource pop
end
end`;
}

function hexOf(value) {
  return value.toString(16).padStart(4, "0");
}
