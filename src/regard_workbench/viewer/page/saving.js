// Saving a figure or its numbers to a file or the clipboard.

import { h } from "./dom.js";
import { labelledDrawing, labelledTable } from "./warning.js";

const KINDS = [
  ["svg", "SVG", "vector picture"],
  ["pdf", "PDF", "vector page for a paper"],
  ["png", "PNG", "picture in pixels"],
  ["csv", "CSV", "the numbers"],
  ["copy", "Copy picture", "to the clipboard"],
  ["numbers", "Copy numbers", "to the clipboard"],
  ["link", "Copy link", "to what is shown"],
];

/**
 * A button with a menu. `shown()` gives the open view (`drawing()`, `table()`), `name()` the file name without extension;
 * `warning` is put on everything saved.
 */
export function createSaving({ shown, name, tell, address, font, warning = "", captioned = (drawing) => drawing }) {
  const menu = h("div", { class: "menu", role: "menu", hidden: true, "aria-label": "Save or copy" });
  const button = h("button", { type: "button", class: "plain", "aria-haspopup": "menu", "aria-expanded": "false", data: { testid: "save" }, on: { click: () => toggle() } }, "Save");
  const element = h("div", { class: "menu-holder" }, button, menu);
  const items = KINDS.filter(([kind]) => kind !== "link" || address).map(([kind, label, words]) => {
    const item = h("button", { type: "button", role: "menuitem", class: "menu-item", data: { testid: `save-${kind}` }, on: { click: () => take(kind) } }, h("span", {}, label), h("small", {}, words));
    menu.append(item);
    return item;
  });

  async function take(kind) {
    toggle(false);
    try {
      tell(await save(kind, shown(), name(), { warning, captioned, font }));
    } catch (problem) {
      tell(`Not saved: ${problem.message}`);
    }
  }

  function toggle(open = menu.hidden) {
    menu.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) items[0].focus();
    else if (element.contains(document.activeElement)) button.focus();
  }

  element.addEventListener("keydown", (event) => {
    if (menu.hidden) return;
    const at = items.indexOf(document.activeElement);
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) items[(at + move + items.length) % items.length].focus();
    else if (event.key === "Escape") toggle(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  element.addEventListener("focusout", (event) => {
    if (!menu.hidden && event.relatedTarget && !element.contains(event.relatedTarget)) toggle(false);
  });
  const outside = (event) => {
    if (!menu.hidden && !event.composedPath().includes(element)) toggle(false);
  };
  document.addEventListener("pointerdown", outside);
  return { element, toggle, forget: () => document.removeEventListener("pointerdown", outside) };
}

async function save(kind, view, name, { warning, captioned, font }) {
  if (kind === "link") {
    await navigator.clipboard.writeText(location.href);
    return "Link copied.";
  }
  if (kind === "csv" || kind === "numbers") {
    const plain = view.table && (await view.table());
    if (!plain) throw new Error("this view has no table of numbers.");
    const table = labelledTable(plain, warning);
    if (kind === "csv") return download(`${name}.csv`, new Blob([toCSV(table)], { type: "text/csv" }));
    await navigator.clipboard.writeText(toCSV(table, "\t"));
    return "Numbers copied.";
  }
  const plain = view.drawing && (await view.drawing());
  if (!plain) throw new Error("this view has no picture yet.");
  const drawing = labelledDrawing(captioned(plain), warning);
  if (kind === "svg") return download(`${name}.svg`, new Blob([drawing.toSVG()], { type: "image/svg+xml" }));
  if (kind === "pdf") return download(`${name}.pdf`, new Blob([await drawing.toPDF(font)], { type: "application/pdf" }));
  const picture = await new Promise((resolve) => drawing.toCanvas(2).toBlob(resolve, "image/png"));
  if (!picture) throw new Error("the picture is too large for this browser. Zoom in, or save it as SVG.");
  if (kind === "png") return download(`${name}.png`, picture);
  await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
  return "Picture copied.";
}

/** Rows as CSV; a cell that a spreadsheet would read as a formula gets a leading apostrophe. */
export function toCSV({ head, rows }, separator = ",") {
  const cell = (value) => {
    if (typeof value === "number") return String(Number(value.toPrecision(7)));
    let text = String(value ?? "").replace(/[\r\n]+/g, " ");
    if (/^[=+\-@\t]/.test(text) && !/^[-+]?\d*\.?\d+(e[-+]?\d+)?$/i.test(text)) text = `'${text}`;
    if (separator === "\t") return text.replace(/\t/g, " ");
    return /[",]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(separator)).join("\n") + "\n";
}

function download(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = h("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
  return `Saved ${name}.`;
}
