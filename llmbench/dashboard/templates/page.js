// Sorting, filtering, raw samples on a click, and links that keep the view. Without this script everything is still there to read.
"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.querySelector(".filters");
  const keys = ["machine", "model", "dtype"].filter((key) => form.elements[key]);
  const view = { s: "", t: "", sort: "", row: "" };

  // ---- the view, kept in the address: #s=summary&machine=...
  const save = () => {
    const found = new URLSearchParams();
    for (const key of keys) if (form.elements[key].value) found.set(key, form.elements[key].value);
    if (form.elements.text.value) found.set("text", form.elements.text.value);
    for (const key of Object.keys(view)) if (view[key]) found.set(key, view[key]);
    history.replaceState(null, "", "#" + found);
  };
  const restore = () => {
    const text = decodeURI(location.hash.slice(1));
    if (text && document.getElementById(text)) {
      view.s = text;
      return go();
    }
    const found = new URLSearchParams(location.hash.slice(1));
    for (const key of keys) form.elements[key].value = found.get(key) || "";
    form.elements.text.value = found.get("text") || "";
    for (const key of Object.keys(view)) view[key] = found.get(key) || "";
    filter();
    if (view.sort) {
      const [table, column, way] = view.sort.split(".");
      const heading = document.getElementById(table)?.tHead?.rows[0].cells[Number(column)];
      if (heading) sort(heading, way === "d");
    }
    go();
    if (view.row) open(view.row);
  };
  const go = () => {
    if (view.s) document.getElementById(view.s)?.scrollIntoView();
    for (const link of all("nav a")) {
      if (link.hash === "#" + view.s) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };

  // ---- filters
  const fits = (node) => {
    for (const key of keys) {
      const wanted = form.elements[key].value;
      if (wanted && node.dataset[key] !== undefined && node.dataset[key] !== wanted) return false;
    }
    const text = form.elements.text.value.trim().toLowerCase();
    return !text || node.textContent.toLowerCase().includes(text);
  };
  const filter = () => {
    let shown = 0;
    const cases = all(".case");
    for (const one of cases) {
      one.hidden = !fits(one);
      shown += one.hidden ? 0 : 1;
    }
    document.getElementById("filtered").textContent = shown === cases.length ? "" : `${shown} of ${cases.length} shown`;
    for (const one of all("figure.charts")) one.hidden = !fits(one);
    for (const table of all("table[id]")) {
      let kept = 0;
      const lines = Array.from(table.tBodies[0].rows);
      for (const line of lines) {
        line.hidden = table.id !== "features-table" && !fits(line);
        kept += line.hidden ? 0 : 1;
      }
      const count = document.querySelector(`[data-for="${table.id}"]`);
      if (kept < lines.length) count.textContent = `${kept} of ${lines.length} lines`;
      else count.textContent = count.closest("summary") ? `${lines.length} lines` : "";
    }
  };

  // ---- sorting
  const worth = (cell) => (cell.dataset.v === undefined ? null : Number(cell.dataset.v));
  const sort = (heading, down) => {
    const column = heading.cellIndex, body = heading.closest("table").tBodies[0], numeric = heading.classList.contains("n");
    const order = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      const [v, w] = [worth(x), worth(y)];
      if (numeric || v !== null || w !== null) {
        if (v === null || w === null) return (v === null) - (w === null); // what wasn't measured stands last either way
        return down ? w - v : v - w;
      }
      return (down ? -1 : 1) * x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
    };
    body.append(...Array.from(body.rows).sort(order));
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  };

  // ---- raw samples
  const dialog = document.getElementById("detail");
  const node = (kind, text, parent) => {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const open = (name) => {
    const row = Object.hasOwn(data.rows, name) ? data.rows[name] : null;
    if (!row) return;
    document.getElementById("detail-title").textContent = row.t;
    const body = document.getElementById("detail-body");
    body.replaceChildren();
    node("p", row.a, body).className = "note";
    for (const note of row.n) node("p", note, body).className = "note";
    const figures = node("dl", undefined, body);
    figures.className = "figures";
    for (const [title, text] of row.f) {
      const pair = node("div", undefined, figures);
      node("dt", data.titles[title], pair);
      node("dd", text, pair);
    }
    node("h3", "Raw samples: wall seconds of each generation", body);
    const table = node("table", undefined, body);
    const head = node("tr", undefined, node("thead", undefined, table));
    for (const title of ["process", "generations", "wall, s"]) node("th", title, head).scope = "col";
    const lines = node("tbody", undefined, table);
    for (const [words, kinds] of row.b) {
      if (!kinds.length) node("th", words, node("tr", undefined, lines)).scope = "row";
      for (const [kind, walls] of kinds) {
        const line = node("tr", undefined, lines);
        node("th", words, line).scope = "row";
        node("td", kind.replaceAll("_", " "), line);
        node("td", walls.join("  "), line);
      }
    }
    view.row = name;
    save();
    if (!dialog.open) dialog.showModal();
  };

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button,a");
    if (!target) return;
    if (target.dataset.row) open(target.dataset.row);
    else if (target.classList.contains("sort")) {
      const heading = target.closest("th");
      const way = heading.getAttribute("aria-sort");
      const down = way ? way === "ascending" : heading.classList.contains("n");
      sort(heading, down);
      view.sort = [heading.closest("table").id, heading.cellIndex, down ? "d" : "a"].join(".");
      save();
    } else if (target.dataset.chart) {
      const figure = target.closest("figure");
      for (const tab of all(".tab", figure)) {
        tab.setAttribute("aria-pressed", String(tab === target));
        document.getElementById(tab.dataset.chart).hidden = tab !== target;
      }
    } else if (target.closest("nav")) {
      event.preventDefault();
      view.s = target.hash.slice(1);
      save();
      go();
    }
  });
  dialog.addEventListener("close", () => {
    view.row = "";
    save();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    filter();
    save();
  });
  form.addEventListener("reset", () => setTimeout(() => {
    filter();
    save();
  }));
  window.addEventListener("hashchange", restore);
  window.addEventListener("beforeprint", () => {
    for (const one of all("details")) one.open = true;
  });
  restore();
})();
