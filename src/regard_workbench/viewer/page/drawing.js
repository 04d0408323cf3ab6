// A drawing as a list of marks, which can be written as SVG, PDF or canvas. Units are CSS pixels.

import { FAMILY, fillOf, fontOf, short } from "./marks.js";
import { makePDF } from "./pdf.js";

export class Drawing {
  constructor(width, height, background = "rgb(255, 255, 255)") {
    this.width = width;
    this.height = height;
    this.background = background;
    this.marks = [];
  }

  /** style: `fill`, `stroke`, `width` (of the stroke), `opacity`. */
  rect(x, y, width, height, style = {}) {
    this.marks.push({ kind: "rect", x, y, width, height, style });
    return this;
  }

  /** style: `stroke`, `width`, `opacity`, `dash` (a list of lengths). */
  line(x1, y1, x2, y2, style = {}) {
    return this.path([["M", x1, y1], ["L", x2, y2]], { fill: null, ...style });
  }

  /** commands: ["M", x, y], ["L", x, y], ["C", x1, y1, x2, y2, x, y], ["Z"]. */
  path(commands, style = {}) {
    this.marks.push({ kind: "path", commands, style });
    return this;
  }

  /** (x, y) is on the base line. style: `size`, `fill`, `anchor` ("start", "middle", "end"), `rotate` (degrees), `bold`, `opacity`. */
  text(x, y, text, style = {}) {
    const clean = String(text).replace(/[\u0000-\u001f\u007f-\u009f\ud800-\udfff]/g, (sign) => (sign >= "\ud800" ? sign : " "));
    this.marks.push({ kind: "text", x, y, text: wellFormed(clean), style });
    return this;
  }

  /** A canvas as an image; `smooth: false` keeps its pixels sharp. */
  image(canvas, x, y, width, height, { smooth = false } = {}) {
    this.marks.push({ kind: "image", canvas, x, y, width, height, smooth });
    return this;
  }

  /** All marks of another drawing, moved. */
  add(other, dx, dy) {
    for (const mark of other.marks) this.marks.push(moved(mark, dx, dy));
    return this;
  }

  toSVG() {
    const lines = [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="${FAMILY}">`,
    ];
    if (this.background) lines.push(`<rect width="100%" height="100%" fill="${escaped(this.background)}"/>`);
    for (const mark of this.marks) lines.push(svgOf(mark));
    lines.push("</svg>");
    return lines.join("\n");
  }

  /** A promise of the bytes of a one-page vector PDF; `font(bold)` gives a promise of a font file with its metrics. */
  toPDF(font) {
    return makePDF(this, font);
  }

  toCanvas(scale = 2) {
    const canvas = document.createElement("canvas");
    canvas.width = Math.round(this.width * scale);
    canvas.height = Math.round(this.height * scale);
    const paint = canvas.getContext("2d");
    paint.scale(scale, scale);
    if (this.background) {
      paint.fillStyle = this.background;
      paint.fillRect(0, 0, this.width, this.height);
    }
    for (const mark of this.marks) paintMark(paint, mark);
    return canvas;
  }
}

function wellFormed(text) {
  return typeof text.toWellFormed === "function" ? text.toWellFormed() : text;
}

function moved(mark, dx, dy) {
  if (mark.kind !== "path") return { ...mark, x: mark.x + dx, y: mark.y + dy };
  const commands = mark.commands.map(([name, ...at]) => [name, ...at.map((value, index) => value + (index % 2 ? dy : dx))]);
  return { ...mark, commands };
}

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

function svgOf(mark) {
  if (mark.kind === "image") {
    const rendering = mark.smooth ? "" : ' style="image-rendering:pixelated"';
    return `<image x="${short(mark.x)}" y="${short(mark.y)}" width="${short(mark.width)}" height="${short(mark.height)}" preserveAspectRatio="none"${rendering} href="${mark.canvas.toDataURL("image/png")}"/>`;
  }
  const { style } = mark;
  const opacity = style.opacity !== undefined && style.opacity !== 1 ? ` opacity="${style.opacity}"` : "";
  if (mark.kind === "text") {
    const turn = style.rotate ? ` transform="rotate(${style.rotate} ${short(mark.x)} ${short(mark.y)})"` : "";
    const anchor = style.anchor && style.anchor !== "start" ? ` text-anchor="${style.anchor}"` : "";
    const bold = style.bold ? ' font-weight="bold"' : "";
    return `<text x="${short(mark.x)}" y="${short(mark.y)}" font-size="${style.size || 12}" fill="${escaped(style.fill || "black")}"${anchor}${bold}${turn}${opacity} xml:space="preserve">${escaped(mark.text)}</text>`;
  }
  const stroke = style.stroke ? ` stroke="${escaped(style.stroke)}" stroke-width="${style.width || 1}"` : "";
  const dash = style.dash ? ` stroke-dasharray="${style.dash.join(" ")}"` : "";
  const paint = ` fill="${escaped(fillOf(style))}"${stroke}${dash}${opacity}`;
  if (mark.kind === "rect") return `<rect x="${short(mark.x)}" y="${short(mark.y)}" width="${short(mark.width)}" height="${short(mark.height)}"${paint}/>`;
  const way = mark.commands.map(([name, ...at]) => name + at.map(short).join(" ")).join("");
  return `<path d="${way}"${paint}/>`;
}

function paintMark(paint, mark) {
  paint.save();
  const style = mark.style || {};
  if (style.opacity !== undefined) paint.globalAlpha = style.opacity;
  if (mark.kind === "image") {
    paint.imageSmoothingEnabled = mark.smooth;
    paint.drawImage(mark.canvas, mark.x, mark.y, mark.width, mark.height);
  } else if (mark.kind === "text") {
    paint.translate(mark.x, mark.y);
    if (style.rotate) paint.rotate((style.rotate * Math.PI) / 180);
    paint.font = fontOf(style);
    paint.fillStyle = style.fill || "black";
    paint.textAlign = { middle: "center", end: "right" }[style.anchor] || "left";
    paint.fillText(mark.text, 0, 0);
  } else {
    paint.beginPath();
    if (mark.kind === "rect") paint.rect(mark.x, mark.y, mark.width, mark.height);
    else for (const [name, ...at] of mark.commands) paint[{ M: "moveTo", L: "lineTo", C: "bezierCurveTo", Z: "closePath" }[name]](...at);
    if (fillOf(style) !== "none") {
      paint.fillStyle = fillOf(style);
      paint.fill();
    }
    if (style.stroke) {
      paint.strokeStyle = style.stroke;
      paint.lineWidth = style.width || 1;
      if (style.dash) paint.setLineDash(style.dash);
      paint.stroke();
    }
  }
  paint.restore();
}
