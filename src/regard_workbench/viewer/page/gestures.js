// Touch, mouse and wheel on a map: drag to pan, wheel or pinch to zoom, press to pin.

const CLICK_DISTANCE = 4;

/** `hands` gets pan(dx, dy), zoom(factor, x, y, smooth), hover(x, y | null), press(x, y). Returns a function that removes the listeners. */
export function listenTo(element, hands) {
  const pointers = new Map();
  let travelled = 0;
  let box = null;
  const local = (event) => {
    if (!box) box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const spread = () => {
    const [a, b] = [...pointers.values()];
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, size: Math.hypot(a.x - b.x, a.y - b.y) || 1 };
  };

  const down = (event) => {
    if (event.button !== 0) return;
    box = null;
    pointers.set(event.pointerId, local(event));
    try {
      element.setPointerCapture(event.pointerId);
    } catch {
      // A pointer that is already gone cannot be captured; dragging still works inside the map.
    }
    travelled = pointers.size > 1 ? Infinity : 0;
    element.classList.add("held");
  };
  const move = (event) => {
    const at = local(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      hands.hover(at.x, at.y);
      return;
    }
    if (pointers.size === 2) {
      const old = spread();
      pointers.set(event.pointerId, at);
      const now = spread();
      hands.pan(now.x - old.x, now.y - old.y);
      hands.zoom(now.size / old.size, now.x, now.y, false);
      return;
    }
    travelled += Math.hypot(at.x - before.x, at.y - before.y);
    pointers.set(event.pointerId, at);
    if (travelled >= CLICK_DISTANCE) hands.pan(at.x - before.x, at.y - before.y);
  };
  const up = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    const at = local(event);
    if (event.type === "pointerup" && travelled < CLICK_DISTANCE) hands.press(at.x, at.y);
    if (!pointers.size) element.classList.remove("held");
  };
  const wheel = (event) => {
    event.preventDefault();
    box = null;
    const { x, y } = local(event);
    const lines = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 200 : 1;
    // A pinch on a touch pad arrives as a wheel with the control key and small steps.
    const speed = event.ctrlKey ? 0.01 : 0.0018;
    const amount = Math.max(-240, Math.min(240, event.deltaY * lines));
    hands.zoom(Math.exp(-amount * speed), x, y, false);
  };
  const twice = (event) => {
    const { x, y } = local(event);
    hands.zoom(event.shiftKey ? 1 / 2.5 : 2.5, x, y, true);
  };
  const leave = () => {
    box = null;
    if (!pointers.size) hands.hover(null, null);
  };
  const enter = () => {
    box = null;
  };
  const list = [["pointerdown", down], ["pointermove", move], ["pointerup", up], ["pointercancel", up], ["dblclick", twice], ["pointerleave", leave], ["pointerenter", enter]];
  for (const [name, f] of list) element.addEventListener(name, f);
  element.addEventListener("wheel", wheel, { passive: false });
  return () => {
    for (const [name, f] of list) element.removeEventListener(name, f);
    element.removeEventListener("wheel", wheel);
  };
}
