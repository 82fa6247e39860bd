// Shows the data of the page: tables that sort and filter, pictures, and a dialog for a cell.
"use strict";

const PAGE = 100; // rows of a table at a time
const report = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

// element("td", {class: "number"}, "text" or elements...)
function element(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...content.filter((part) => part !== null));
  return made;
}

// ---- Numbers and texts ----

// Four digits, as kvlab table prints; a dash where there is no number.
function shown(value) {
  if (value === null || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? value.toPrecision(4).replace(/\.$/, "") : value.toExponential(3);
}

// As kvlab table: what pdflatex's defaults lack becomes mathematics or its code point, and nothing that starts a row is an
// argument of the line end before it.
const TEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}",
  ">": "\\textgreater{}", "|": "\\textbar{}", "[": "{[}", "*": "{*}", "–": "--", "—": "---", "…": "\\dots{}", "†": "\\textdagger{}",
  "‘": "`", "’": "'", "“": "``", "”": "''", "−": "$-$", "²": "$^2$", "³": "$^3$", "ᵀ": "$^{\\top}$", "‖": "$\\Vert$" };
const TEX_WORDS = "α alpha β beta γ gamma δ delta ε varepsilon ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu µ mu ν nu ξ xi " +
  "π pi ρ rho σ sigma τ tau υ upsilon φ varphi χ chi ψ psi ω omega Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi " +
  "Ψ Psi Ω Omega ± pm · cdot × times ÷ div ≤ leq ≥ geq ≠ neq ≈ approx ∞ infty ∑ sum √ surd ∈ in → rightarrow ← leftarrow";
TEX_WORDS.split(" ").forEach((word, i, words) => { if (i % 2 === 0) TEX[word] = `$\\${words[i + 1]}$`; });

function tex(text) {
  return text.replace(/[&%$#_{}]|[^\x20-\x7eÀ-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ]|[\\~^<>|[*]/gu, (sign) => TEX[sign]
    ?? (/[&%$#_{}]/.test(sign) ? `\\${sign}` : `\\texttt{U+${sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}}`));
}

let saidTimer = 0;
function say(text) {
  const said = document.getElementById("said");
  said.textContent = text;
  said.classList.add("shown");
  clearTimeout(saidTimer);
  saidTimer = setTimeout(() => said.classList.remove("shown"), 1500);
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without the right to the clipboard, the old way: select and copy.
    const area = element("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`Copied ${what}`);
}

// ---- Tables ----

// Words that must all hold: `kivi` somewhere in the row, `layer=10`, `wo_rel < 0.2`, `-text` nowhere.
const COMPARISON = /^([^<>=!]+)(<=|>=|!=|=|<|>)(.+)$/;

function conditionOf(word, columns) {
  const parts = word.match(COMPARISON);
  const column = parts ? columns.findIndex((c) => c.name === parts[1].trim()) : -1;
  if (column < 0) {
    const not = word.length > 1 && word.startsWith("-");
    const text = (not ? word.slice(1) : word).toLowerCase();
    return (row, texts) => texts(row).includes(text) !== not;
  }
  const sign = parts[2], wanted = parts[3].trim();
  return (row) => {
    const value = row[column];
    if (value === null) return false;
    if (typeof value === "number" && !Number.isNaN(Number(wanted))) {
      const n = Number(wanted);
      return { "=": value === n, "!=": value !== n, "<": value < n, ">": value > n, "<=": value <= n, ">=": value >= n }[sign];
    }
    const same = String(value).toLowerCase() === wanted.toLowerCase();
    return sign === "!=" ? !same : sign === "=" && same;
  };
}

// The words of a filter's text: quotes, and a sign of a comparison, keep spaces within one.
function words(text) {
  return (text.match(/(?:\s*(?:[<>!]=|[<>=])\s*|[^\s"]|"[^"]*")+/g) ?? []).map((word) => word.replaceAll('"', "")).filter(Boolean);
}

function order(a, b) {
  if (a === b) return 0;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

class Table {
  constructor(data) {
    this.data = data;
    const count = data.values.length ? data.values[0].length : 0;
    this.all = Array.from({ length: count }, (_, i) => data.values.map((column) => column[i]));
    this.texts = new Map();
    this.sorted = { column: -1, falling: false };
    this.page = 0;
    this.build();
    this.refresh();
  }

  build() {
    const { name, title, note, columns } = this.data;
    this.filter = element("input", { type: "search", placeholder: "filter: kivi layer=10 wo_rel<0.2",
      "aria-label": `Filter ${title}`,
      title: "Rows in which all words hold; -word: rows without it", oninput: () => { this.page = 0; this.refresh(); } });
    this.count = element("span", { class: "pages", role: "status" });
    this.clear = element("button", { type: "button", class: "clear", onclick: () => this.unfilter() }, "Clear");
    this.back = element("button", { type: "button", onclick: () => this.turn(-1) }, "‹ Previous");
    this.on = element("button", { type: "button", onclick: () => this.turn(1) }, "Next ›");
    const choices = columns.map((column) => element("label", {}, element("input", { type: "checkbox", checked: column.shown,
      onchange: (event) => { column.shown = event.target.checked; this.refresh(); } }), ` ${column.name}`));
    this.head = element("tr");
    this.body = element("tbody", { onclick: (e) => this.open(e.target.closest("tr")), onkeydown: (e) => this.key(e) });
    main.append(element("section", { id: name }, element("h2", {}, title), element("p", { class: "note" }, note),
      element("div", { class: "tools" }, this.filter, this.clear,
        element("button", { type: "button", class: "latex", onclick: () => copy(this.latex(), "LaTeX") }, "Copy LaTeX"),
        this.back, this.on, this.count),
      columns.every((column) => column.shown) ? null
        : element("details", { class: "columns" }, element("summary", {}, "Columns"), ...choices),
      element("div", { class: "scroll", tabindex: "-1" }, element("table", {}, element("thead", {}, this.head), this.body))));
  }

  text(row) {
    if (!this.texts.has(row)) this.texts.set(row, row.map((value) => String(value ?? "")).join("\n").toLowerCase());
    return this.texts.get(row);
  }

  // The rows that the filter leaves, in order; those without a value come last either way.
  choose() {
    const holds = words(this.filter.value).map((word) => conditionOf(word, this.data.columns));
    const rows = this.all.filter((row) => holds.every((hold) => hold(row, (r) => this.text(r))));
    const { column, falling } = this.sorted;
    if (column < 0) return rows;
    const empty = (row) => row[column] === null || row[column] === "";
    return rows.sort((a, b) => empty(a) - empty(b) || (falling ? -1 : 1) * order(a[column], b[column]));
  }

  unfilter() {
    this.filter.value = "";
    this.page = 0;
    this.refresh();
    this.filter.focus();
  }

  // Why no row is left: words that name no column are looked for as text.
  nothing() {
    const names = this.data.columns.map((column) => column.name);
    const unknown = words(this.filter.value).map((word) => word.match(COMPARISON)?.[1].trim()).filter((name) => name && !names.includes(name));
    const why = unknown.length ? `there is no column ${[...new Set(unknown)].join(", ")}` : "in none of them all words hold";
    return `0 of ${this.all.length} rows: ${why}.`;
  }

  refresh() {
    this.rows = this.choose();
    this.clear.hidden = this.filter.value === "";
    this.shownColumns = this.data.columns.map((column, i) => ({ ...column, i })).filter((column) => column.shown);
    this.head.replaceChildren(...this.shownColumns.map((column) => {
      const sorted = this.sorted.column === column.i ? (this.sorted.falling ? "descending" : "ascending") : "none";
      return element("th", { scope: "col", class: column.number ? "number" : "", "aria-sort": sorted },
        element("button", { type: "button", "data-column": column.name, onclick: () => this.sortBy(column.i) },
          column.unit ? `${column.name} (${column.unit})` : column.name));
    }));
    const pages = Math.max(1, Math.ceil(this.rows.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    this.back.disabled = this.page === 0;
    this.on.disabled = this.page === pages - 1;
    this.back.hidden = this.on.hidden = this.all.length <= PAGE;
    const all = `${this.all.length} rows`;
    const of = this.rows.length === this.all.length ? all : `${this.rows.length} of ${all}`;
    this.count.textContent = pages > 1 ? `${of}, page ${this.page + 1} of ${pages}` : of;
    const opens = this.data.name === "rows";
    this.body.replaceChildren(...this.rows.slice(this.page * PAGE, (this.page + 1) * PAGE).map((row, place) =>
      element("tr", opens ? { tabindex: "0", "data-place": this.page * PAGE + place } : {}, ...this.shownColumns.map((column) => {
        const text = shown(row[column.i]);
        return element("td", { class: column.number ? "number" : text.length > 60 ? "long" : "" }, text);
      }))));
    if (this.all.length && !this.rows.length) {
      this.body.replaceChildren(element("tr", {}, element("td", { class: "nothing", colspan: this.shownColumns.length }, this.nothing())));
    }
  }

  sortBy(column) {
    this.sorted = { column, falling: this.sorted.column === column && !this.sorted.falling };
    this.page = 0;
    this.refresh();
    this.head.querySelector(`button[data-column="${CSS.escape(this.data.columns[column].name)}"]`).focus();
  }

  turn(step) {
    this.page += step;
    this.refresh();
  }

  key(event) {
    const line = event.target.closest("tr");
    if (!line || !line.hasAttribute("tabindex")) return;
    const to = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling }[event.key];
    if (to) to.focus();
    const opens = event.key === "Enter" || event.key === " ";
    // Else the same press of Enter would go on to the button that has the focus then, and close the dialog.
    if (to || opens) event.preventDefault();
    if (opens) this.open(line);
  }

  open(line) {
    if (line?.dataset.place) openCell(this.data.columns, this.rows[Number(line.dataset.place)]);
  }

  latex() {
    const lines = [`\\begin{tabular}{${this.shownColumns.map((c) => (c.number ? "r" : "l")).join("")}}`, "\\toprule"];
    lines.push(this.shownColumns.map((c) => tex(c.unit ? `${c.name} (${c.unit})` : c.name)).join(" & ") + " \\\\", "\\midrule");
    for (const row of this.rows) lines.push(this.shownColumns.map((c) => tex(shown(row[c.i]))).join(" & ") + " \\\\");
    return [...lines, "\\bottomrule", "\\end{tabular}", ""].join("\n");
  }
}

// ---- A cell ----

let configs = null; // read when the first cell is opened: most of the page's data

function configOf(cell) {
  configs ??= JSON.parse(document.getElementById("configs").textContent);
  const parts = configs.cells[cell] ?? {};
  return Object.fromEntries(Object.entries(parts).map(([key, place]) => [key, configs.parts[place]]));
}

function openCell(columns, row) {
  const of = Object.fromEntries(columns.map((column, i) => [column.name, row[i]]));
  const dialog = document.getElementById("cell");
  document.getElementById("cell-title").textContent = ["label", "dataset", "layer"].filter((name) => name in of)
    .map((name) => (name === "layer" ? `layer ${of[name]}` : of[name])).join(", ");
  const list = element("dl");
  for (const column of columns) {
    if (!["reason", "warnings", "label"].includes(column.name) && of[column.name] !== null) {
      list.append(element("dt", {}, column.name), element("dd", {}, `${shown(of[column.name])} ${column.unit}`));
    }
  }
  const remarks = [of.reason, ...String(of.warnings ?? "").split("\n")].filter(Boolean).map((text) => element("li", {}, text));
  document.getElementById("cell-body").replaceChildren(
    remarks.length ? element("ul", { id: "cell-remarks" }, ...remarks) : "", list,
    element("pre", { id: "cell-config", tabindex: "0" }, JSON.stringify(configOf(of.cell), null, 2)));
  dialog.showModal();
  document.getElementById("cell-close").focus();
  dialog.scrollTop = 0;
}

document.getElementById("cell-close").addEventListener("click", () => document.getElementById("cell").close());
document.querySelector("[data-copy=cell-config]").addEventListener("click", () =>
  copy(document.getElementById("cell-config").textContent, "configuration"));

// ---- Pictures ----

const plots = report.pictures.map((picture, place) => {
  const plot = element("div", { class: "plot", id: `plot-${place}`, role: "figure",
    "aria-label": `${picture.title}. ${picture.caption}`, style: `height:${picture.layout.height}px` });
  return { picture, plot, drawn: false };
});

function showPictures() {
  const section = element("section", { id: "pictures" }, element("h2", {}, "Pictures"));
  for (const { picture, plot } of plots) {
    section.append(element("h3", {}, picture.title), element("p", { class: "note" }, picture.caption), plot,
      element("p", { class: "command" }, element("button", { type: "button", class: "copy-command",
        onclick: () => copy(picture.command, "command") }, "Copy command"), element("code", {}, picture.command)));
  }
  if (report.missing.length) {
    section.append(element("p", {}, "This file has no data for:"),
      element("ul", { id: "missing" }, ...report.missing.map((text) => element("li", {}, text))));
  }
  main.append(section);
}

// The page's colours, for plotly.
function themed(layout) {
  const of = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themedLayout = { ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: of("--text"), size: 13 }, hoverlabel: { bgcolor: of("--raised"), font: { color: of("--text") } } };
  for (const name of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    themedLayout[name] = { ...layout[name], gridcolor: of("--line"), linecolor: of("--line"), zeroline: false };
  }
  return themedLayout;
}

function draw(entry) {
  entry.drawn = true;
  return Plotly.react(entry.plot, entry.picture.data, themed(entry.picture.layout),
    { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
}

// Draws each picture when it is about to come into view. Called once plotly's script is there.
function drawPictures() {
  const watch = new IntersectionObserver((seen) => {
    for (const { target } of seen.filter((entry) => entry.isIntersecting)) {
      watch.unobserve(target);
      draw(plots.find((entry) => entry.plot === target));
    }
  }, { rootMargin: "400px" });
  for (const { plot } of plots) watch.observe(plot);
  // How long opening took, in milliseconds, for the page's test.
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.ready = Math.round(performance.now()); }));
}

// ---- Page ----

function redraw() {
  for (const entry of plots.filter((one) => one.drawn)) draw(entry);
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea") || document.getElementById("cell").open) return;
  event.preventDefault();
  const sections = [...document.querySelectorAll("section:has(input[type=search])")];
  const near = sections.find((section) => section.getBoundingClientRect().bottom > 100) ?? sections[0];
  near.querySelector("input[type=search]").focus();
});

const [labels, ...others] = report.tables;
new Table(labels);
showPictures();
for (const table of others) new Table(table);
document.getElementById("contents").append(...[...main.children].map((section) =>
  element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
