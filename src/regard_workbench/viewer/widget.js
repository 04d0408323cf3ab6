// The page in a notebook: requests data from the kernel while it answers, else uses the stored payload.

import { mount } from "./app.js";
import { SourceError, askingSource } from "./source.js";
import { payloadSource } from "./embedded.js";

const PATIENCE = 4000; // milliseconds to wait for a running kernel
const LONGEST = 120000;

/** Requests to the kernel over the widget's messages. */
function kernelSource(model) {
  const open = new Map();
  let count = 0;
  const hear = (content, buffers) => {
    const waiting = open.get(content.id);
    if (!waiting) return;
    open.delete(content.id);
    if (content.error) waiting.fail(new SourceError(content.error, content.status));
    else waiting.give(copied(buffers[0]));
  };
  model.on("msg:custom", hear);
  const ask = (path, query, signal, patience = LONGEST) => new Promise((give, fail) => {
    const id = (count += 1);
    const stop = (problem) => {
      open.delete(id);
      fail(problem);
    };
    const timer = setTimeout(() => stop(new SourceError("The notebook's kernel does not answer. Is it busy?")), patience);
    open.set(id, {
      give: (answer) => { clearTimeout(timer); give(answer); },
      fail: (problem) => { clearTimeout(timer); fail(problem); },
    });
    if (signal) signal.addEventListener("abort", () => stop(new DOMException("No longer needed.", "AbortError")));
    model.send({ id, path, query });
  });
  return { source: askingSource(ask), answers: () => ask("scene", {}, null, PATIENCE), forget: () => model.off("msg:custom", hear) };
}

/** A buffer of a message as an ArrayBuffer of its own. */
function copied(view) {
  const bytes = view instanceof ArrayBuffer ? new Uint8Array(view) : new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  return bytes.slice().buffer;
}

function keptSource(model) {
  const bytes = () => {
    const packed = new Uint8Array(copied(model.get("_bytes")));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).arrayBuffer().then((buffer) => new Uint8Array(buffer));
  };
  return payloadSource(JSON.parse(model.get("_data")), bytes);
}

export const widget = {
  async render({ model, el }) {
    const root = document.createElement("div");
    root.classList.add("regard-notebook");
    el.append(root);
    const kernel = kernelSource(model);
    let source = null;
    try {
      await kernel.answers();
      source = kernel.source;
    } catch {
      source = keptSource(model);
    }
    const page = await mount(root, source, { address: false });
    return () => {
      kernel.forget();
      page.destroy();
    };
  },
};
