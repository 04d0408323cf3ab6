// Small helpers to build elements. Text goes in only as text nodes, never as markup: tokens are untrusted.
// Styles go through the CSS object model, since the page's content security policy forbids style attributes.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element. Attributes: `class`, `on: {event: f}`, `data: {}`, `style: {}`, properties such as `value`, and plain ones. */
export function h(tag, attributes, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

/** The same for SVG elements. */
export function s(tag, attributes, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Debounce: call `f` after `wait` milliseconds without another call. */
export function settled(f, wait) {
  let timer = 0;
  const call = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => f(...given), wait);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

/** A spinner that appears only after a delay (set in the style sheet). */
export function waiting(text) {
  return h("div", { class: "waiting", role: "status" }, h("span", { class: "pulse", "aria-hidden": "true" }), text);
}

/** A message in an empty view: what is missing and what to try. */
export function notice(title, ...more) {
  return h("div", { class: "notice", data: { testid: "notice" } }, h("h2", {}, title), ...more.map((text) => h("p", {}, text)));
}

/** A dotted name that may break after its dots. */
export function dotted(name) {
  return String(name).split(/(?<=[./])/).flatMap((part, index) => (index ? [h("wbr", {}), part] : [part]));
}

/** Whether a key event belongs to a text field. */
export function isTyping(event) {
  const target = event.composedPath ? event.composedPath()[0] : event.target;
  if (!target || !target.tagName) return false;
  return ["TEXTAREA", "SELECT"].includes(target.tagName) || (target.tagName === "INPUT" && target.type !== "checkbox");
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, f] of Object.entries(value)) element.addEventListener(event, f);
    else if (name === "data") for (const [key, given] of Object.entries(value)) element.dataset[key] = given;
    else if (name === "style") for (const [key, given] of Object.entries(value)) setStyle(element, key, given);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function setStyle(element, key, value) {
  if (key.startsWith("--")) element.style.setProperty(key, value);
  else element.style[key] = value;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}
