// Writes a drawing as a one-page PDF: vector shapes, text in an embedded font, and small images for texts with characters
// that the font lacks.

import { encoded, fontObjects } from "./pdf-font.js";
import { fillOf, fontOf, textWidth } from "./marks.js";

const POINTS = 0.75; // a CSS pixel in points
const SMALLER = 0.9; // of a text's size: the embedded font is larger and wider than the page's
const SHARPNESS = 4; // pixels per CSS pixel of text drawn as an image

/** A promise of the bytes of a PDF. `font(bold)` gives a promise of a font file with its metrics. */
export async function makePDF(drawing, font) {
  const page = new Page(drawing.height, font);
  if (drawing.background) page.shape(drawing.background, null, rectangle(0, 0, drawing.width, drawing.height));
  for (const mark of drawing.marks) await page.mark(mark);
  return page.file(drawing.width, drawing.height);
}

class Page {
  constructor(height, font) {
    this.height = height;
    this.font = font;
    this.fonts = new Map(); // by their name on the page: the font and the characters that were written
    this.words = [`${POINTS} 0 0 ${-POINTS} 0 ${number(height * POINTS)} cm`];
    this.pictures = [];
    this.opacities = new Map();
  }

  async mark(mark) {
    const style = mark.style || {};
    const faint = style.opacity !== undefined && style.opacity < 1;
    if (faint) this.words.push("q", `/${this.opacity(style.opacity)} gs`);
    if (mark.kind === "image") await this.picture(mark.canvas, mark.x, mark.y, mark.width, mark.height, mark.smooth);
    else if (mark.kind === "text") await this.text(mark);
    else {
      const way = mark.kind === "rect" ? rectangle(mark.x, mark.y, mark.width, mark.height) : mark.commands.map(command).join(" ");
      this.shape(fillOf(style), style.stroke, way, style);
    }
    if (faint) this.words.push("Q");
  }

  shape(fill, stroke, way, style = {}) {
    const filled = fill && fill !== "none";
    if (!filled && !stroke) return;
    if (filled) this.words.push(`${channels(fill)} rg`);
    if (stroke) this.words.push(`${channels(stroke)} RG ${number(style.width || 1)} w [${(style.dash || []).map(number).join(" ")}] 0 d`);
    this.words.push(`${way} ${filled && stroke ? "B" : filled ? "f" : "S"}`);
  }

  async text(mark) {
    const { style } = mark;
    const size = style.size || 12;
    const font = await this.font(Boolean(style.bold));
    const written = encoded(mark.text, font);
    const width = textWidth(mark.text, style);
    const back = { middle: width / 2, end: width }[style.anchor] || 0;
    const angle = ((style.rotate || 0) * Math.PI) / 180;
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    const x = mark.x - back * cos;
    const y = mark.y - back * sin;
    if (written && written.ems) {
      const name = style.bold ? "B" : "F";
      if (!this.fonts.has(name)) this.fonts.set(name, { font, used: new Set() });
      for (const sign of mark.text) this.fonts.get(name).used.add(sign);
      // The drawing was laid out in the page's font: the text is fitted to the width that it has there.
      const fitted = (100 * width) / (written.ems * size * SMALLER);
      this.words.push(`BT /${name} ${number(size * SMALLER)} Tf ${number(fitted)} Tz ${channels(style.fill || "black")} rg`);
      this.words.push(`${number(cos)} ${number(sin)} ${number(sin)} ${number(-cos)} ${number(x)} ${number(y)} Tm <${written.hex}> Tj ET`);
      return;
    }
    if (width < 0.5) return;
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil((width + 2) * SHARPNESS);
    canvas.height = Math.ceil(size * 1.6 * SHARPNESS);
    const paint = canvas.getContext("2d");
    paint.scale(SHARPNESS, SHARPNESS);
    paint.font = fontOf(style);
    paint.fillStyle = style.fill || "black";
    paint.fillText(mark.text, 1, size * 1.2);
    this.words.push("q", `${number(cos)} ${number(sin)} ${number(-sin)} ${number(cos)} ${number(x)} ${number(y)} cm`);
    await this.picture(canvas, -1, -1.2 * size, canvas.width / SHARPNESS, canvas.height / SHARPNESS, true);
    this.words.push("Q");
  }

  async picture(canvas, x, y, width, height, smooth) {
    if (!canvas.width || !canvas.height) return;
    const source = canvas.getContext("2d") ? canvas : copied(canvas);
    const pixels = source.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const count = pixels.length / 4;
    const color = new Uint8Array(3 * count);
    const alpha = new Uint8Array(count);
    let clear = false;
    for (let index = 0; index < count; index += 1) {
      color[3 * index] = pixels[4 * index];
      color[3 * index + 1] = pixels[4 * index + 1];
      color[3 * index + 2] = pixels[4 * index + 2];
      alpha[index] = pixels[4 * index + 3];
      clear = clear || alpha[index] < 255;
    }
    this.pictures.push({ width: canvas.width, height: canvas.height, color: await deflated(color), alpha: clear ? await deflated(alpha) : null, smooth });
    this.words.push(`q ${number(width)} 0 0 ${number(-height)} ${number(x)} ${number(y + height)} cm /P${this.pictures.length - 1} Do Q`);
  }

  opacity(value) {
    const name = `O${Math.round(value * 100)}`;
    this.opacities.set(name, value);
    return name;
  }

  async file(width, height) {
    const content = await deflated(new TextEncoder().encode(this.words.join("\n")));
    const out = new Objects();
    const fonts = [];
    for (const [name, { font, used }] of this.fonts) fonts.push(`/${name} ${await fontObjects(out, font, used, deflated)} 0 R`);
    const pictures = this.pictures.map(({ width: w, height: h, color, alpha, smooth }, index) => {
      const common = `/Type /XObject /Subtype /Image /Width ${w} /Height ${h} /BitsPerComponent 8 /Filter /FlateDecode /Interpolate ${Boolean(smooth)}`;
      const mask = alpha ? ` /SMask ${out.stream(`${common} /ColorSpace /DeviceGray`, alpha)} 0 R` : "";
      return `/P${index} ${out.stream(`${common} /ColorSpace /DeviceRGB${mask}`, color)} 0 R`;
    });
    const opacities = [...this.opacities].map(([name, value]) => `/${name} << /ca ${value} /CA ${value} >>`);
    const body = out.stream("/Filter /FlateDecode", content);
    const resources = `<< /Font << ${fonts.join(" ")} >> /XObject << ${pictures.join(" ")} >> /ExtGState << ${opacities.join(" ")} >> >>`;
    const tree = out.count + 2;
    const page = out.plain(`<< /Type /Page /Parent ${tree} 0 R /MediaBox [0 0 ${number(width * POINTS)} ${number(height * POINTS)}] /Resources ${resources} /Contents ${body} 0 R >>`);
    out.plain(`<< /Type /Pages /Kids [${page} 0 R] /Count 1 >>`);
    return out.finish(out.plain(`<< /Type /Catalog /Pages ${tree} 0 R >>`));
  }
}

/** The numbered objects of a PDF and their cross-reference table. */
class Objects {
  constructor() {
    this.chunks = [];
    this.length = 0;
    this.starts = [];
    this.push("%PDF-1.4\n%\u00e2\u00e3\u00cf\u00d3\n");
  }

  get count() {
    return this.starts.length;
  }

  push(text) {
    const bytes = typeof text === "string" ? Uint8Array.from(text, (sign) => sign.charCodeAt(0)) : text;
    this.chunks.push(bytes);
    this.length += bytes.length;
  }

  plain(text) {
    this.starts.push(this.length);
    this.push(`${this.count} 0 obj\n${text}\nendobj\n`);
    return this.count;
  }

  stream(words, bytes) {
    this.starts.push(this.length);
    this.push(`${this.count} 0 obj\n<< ${words} /Length ${bytes.length} >>\nstream\n`);
    this.push(bytes);
    this.push("\nendstream\nendobj\n");
    return this.count;
  }

  finish(root) {
    const start = this.length;
    const lines = this.starts.map((at) => `${String(at).padStart(10, "0")} 00000 n \n`);
    this.push(`xref\n0 ${this.count + 1}\n0000000000 65535 f \n${lines.join("")}trailer\n<< /Size ${this.count + 1} /Root ${root} 0 R >>\nstartxref\n${start}\n%%EOF\n`);
    const file = new Uint8Array(this.length);
    let at = 0;
    for (const chunk of this.chunks) {
      file.set(chunk, at);
      at += chunk.length;
    }
    return file;
  }
}

function deflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer));
}

function copied(canvas) {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  copy.getContext("2d").drawImage(canvas, 0, 0);
  return copy;
}

function command([name, ...at]) {
  return `${at.map(number).join(" ")} ${{ M: "m", L: "l", C: "c", Z: "h" }[name]}`;
}

function rectangle(x, y, width, height) {
  return `${[x, y, width, height].map(number).join(" ")} re`;
}

function number(value) {
  return String(Math.round(value * 1000) / 1000);
}

const probe = {};

/** Red, green and blue, 0…1, of any colour the browser knows. */
function channels(text) {
  if (!probe.paint) {
    const canvas = document.createElement("canvas");
    canvas.width = 1;
    canvas.height = 1;
    probe.paint = canvas.getContext("2d", { willReadFrequently: true });
    probe.known = new Map();
  }
  if (!probe.known.has(text)) {
    probe.paint.fillStyle = text;
    probe.paint.fillRect(0, 0, 1, 1);
    const [r, g, b] = probe.paint.getImageData(0, 0, 1, 1).data;
    probe.known.set(text, [r, g, b].map((value) => number(value / 255)).join(" "));
  }
  return probe.known.get(text);
}
