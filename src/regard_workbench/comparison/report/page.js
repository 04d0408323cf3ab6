// What makes the page handier: a switch for dark and light, sorting, copying, bringing one contestant forward.
"use strict";
(() => {
  const root = document.documentElement;

  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numbers = head.classList.contains("number");
        const was = head.getAttribute("aria-sort");
        const order = was === (numbers ? "descending" : "ascending") ? -1 : 1;
        const falling = numbers ? order === 1 : order === -1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.sort;
        const rows = [...body.rows].sort((a, b) => {
          const [one, other] = [value(a), value(b)];
          if (one === "" || other === "") return (one === "") - (other === "");  // what has no number stays last
          const less = numbers ? Number(one) - Number(other) : one.localeCompare(other);
          return falling ? -less : less;
        });
        body.append(...rows);
      });
    });
  }

  let chosen = null;
  const show = (key) => {
    for (const plates of document.querySelectorAll(".plates")) plates.classList.toggle("dimmed", key !== null);
    for (const shape of document.querySelectorAll(".plates .key")) shape.classList.toggle("lit", shape.dataset.key === key);
  };
  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      chosen = chosen === chip.dataset.key ? null : chip.dataset.key;
      for (const other of document.querySelectorAll(".chip")) other.setAttribute("aria-pressed", String(other.dataset.key === chosen));
      show(chosen);
    });
    chip.addEventListener("pointerenter", () => show(chip.dataset.key));
    chip.addEventListener("pointerleave", () => show(chosen));
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);  // then a key does it
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  const open = () => {
    const target = location.hash.startsWith("#details-") && document.getElementById(location.hash.slice(1));
    if (target) target.open = true;
  };
  addEventListener("hashchange", open);
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
  open();
})();
