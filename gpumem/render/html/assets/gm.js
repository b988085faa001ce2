"use strict";
/* GM: what the figures of a page share.

   GM.page            the document of page_json.py, once GM.state.ready
   GM.column(ref)     a column of the document as a typed array
   GM.view()          the view that is shown: one device of one trace; GM.showView(n) shows another
   GM.figures.push({id, draw(element, page), heavy, plotly})
                      drawn into [data-figure=id], in order, `heavy` ones when they come into view, those that need
                      `plotly` when it is there; drawn again, into an empty element, when the view changes. What draw()
                      returns may have select(site), theme(), clear().
   GM.select(site)    marks a site everywhere, null none; GM.toggle(site)
   GM.pickable(row, pick)  a row that mouse and keyboard pick; GM.showMarked(part) says which of its rows are marked
   GM.expose(name, fn)  adds fn() to GM.state, which is for reading
   Text is set by textContent alone; GM.plotlyText escapes what plotly would read as markup. */

const SHEET_WIDTH = 700;
const decoders = { i4: Int32Array, f8: Float64Array };
const exposed = {};
const drawings = new Map();
const placed = new Set();
let site = null;
let view = 0;
let ready = false;
let columns = null;

const GM = (window.GM = { page: null, figures: [], plotly: null });

/* ---- the document ---- */

async function inflate(id) {
  const text = document.getElementById(id).textContent;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

GM.load = async () => {
  const buffer = await inflate("gm-payload");
  const bytes = Number(new DataView(buffer).getBigUint64(0, true));
  GM.page = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, bytes)));
  columns = { buffer, start: 8 + bytes };
};

GM.loadPlotly = async () => {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflate("gm-plotly"));
  document.head.appendChild(script);
  GM.plotly = window.Plotly;
};

GM.column = (ref) => {
  const [kind, offset, count] = ref.column;
  return new decoders[kind](columns.buffer, columns.start + offset, count);
};

/* ---- numbers and names, as the terminal writes them ---- */

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/* A number with so many decimals; of two equally near the even one, as Python writes it: 1.125 is 1.12. */
GM.fixed = (value, decimals) => {
  const halves = value * 2 ** (decimals + 1);
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(decimals);
  const below = Math.floor((halves * 5 ** decimals) / 2);
  return ((below % 2 ? below + 1 : below) / 10 ** decimals).toFixed(decimals);
};

GM.bytes = (count) => {
  const magnitude = Math.abs(count);
  const sign = count < 0 ? "-" : "";
  for (const [unit, factor] of UNITS)
    if (magnitude >= 1024 && Number(GM.fixed(magnitude / factor, 2)) >= 1) return `${sign}${GM.fixed(magnitude / factor, 2)} ${unit}`;
  return `${sign}${magnitude} B`;
};

GM.count = (count) => String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
GM.share = (part, whole) => (whole ? `${GM.fixed((100 * part) / whole, 1)} %` : "-");
GM.counted = (count, noun) => `${GM.count(count)} ${noun}${count === 1 ? "" : "s"}`;

GM.duration = (ns) => {
  const magnitude = Math.abs(ns);
  const sign = ns < 0 ? "-" : "";
  const seconds = Math.round(magnitude / 1e9);
  const two = (number) => String(number).padStart(2, "0");
  if (seconds >= 3600) return `${sign}${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))} min`;
  if (seconds >= 60) return `${sign}${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
    const shown = (magnitude / factor).toPrecision(3);
    const decimals = shown.includes(".") ? shown.length - 1 - shown.indexOf(".") : 0;
    if (Number(shown) >= 1) return `${sign}${GM.fixed(magnitude / factor, decimals)} ${unit}`;
  }
  return `${sign}${magnitude} ns`;
};

GM.short = (text, characters) => (text.length <= characters ? text : `${text.slice(0, characters >> 1)}…${text.slice(1 - (characters >> 1))}`);
GM.fileName = (file) => GM.short(file.split("/").slice(-2).join("/"), 48);

/* Where a frame is, as far as that is known: installed libraries' C++ often has no file or no line. `file` writes a file. */
GM.placeText = (frame, file = (name) => name) => (["", "??"].includes(frame.file) ? "" : `${file(frame.file)}${frame.line ? `:${frame.line}` : ""}`);
GM.frameText = (frame, file) => {
  const place = GM.placeText(frame, file);
  return place ? `${frame.function} (${place})` : frame.function;
};

GM.siteText = (number) => {
  if (number < 0) return "a site that is not listed";
  const found = GM.page.sites[number];
  return found ? GM.frameText({ ...found, function: GM.short(found.function, 56) }, GM.fileName) : "no Python stack";
};

GM.siteTitle = (number) => {
  const found = GM.page.sites[number];
  if (number < 0) return "one of the smaller sites, which the page does not list";
  return found ? GM.frameText(found) : "blocks whose event has no Python stack";
};

GM.plotlyText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

const SENTENCES = new Set(["p", "td", "summary"]);

GM.make = (name, properties = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "text") made.append(...(SENTENCES.has(name) ? GM.sentence(value) : [value]));
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

/* A text in pieces that keep each figure on one line with its unit. */
GM.sentence = (text) => text.split(/(\d[\d.,]* (?:[KMGT]iB|B|s|ms|us|ns|min|%)(?!\w))/).map((part, at) => (at % 2 ? GM.make("span", { class: "whole", text: part }) : part));

/* The same in place of what an element says. */
GM.say = (element, text) => element.replaceChildren(...GM.sentence(text));

/* Where the window is narrow, the cells of a row stand below one another, each behind the name of its column. */
GM.fold = (table) => {
  const names = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
  for (const row of table.tBodies[0].rows)
    for (const [at, cell] of [...row.cells].entries()) if (at > 0 && names[at]) cell.dataset.label = names[at];
  table.classList.add("folds");
  return table;
};

/* A row that is picked by mouse or keyboard; text that is being marked in it picks nothing. */
GM.pickable = (row, pick) => {
  row.tabIndex = 0;
  row.addEventListener("click", () => { if (window.getSelection().isCollapsed) pick(); });
  row.addEventListener("keydown", (event) => {
    if (event.target !== row || event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      Enter: pick,
      " ": pick,
      ArrowDown: () => row.nextElementSibling?.focus(),
      ArrowUp: () => row.previousElementSibling?.focus(),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  });
  return row;
};

/* A row of buttons of which one is pressed; choose(value) is called when another is. */
GM.choice = (id, label, options, chosen, choose) => {
  const row = GM.make("div", { class: "choice", role: "group", id, "aria-label": label });
  for (const [value, text] of options) {
    const press = () => {
      for (const one of row.children) one.setAttribute("aria-pressed", String(one === button));
      choose(value);
    };
    const button = GM.make("button", { type: "button", "data-value": value, text, onclick: press, "aria-pressed": String(value === chosen) });
    row.append(button);
  }
  return row;
};

/* ---- colours ---- */

GM.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const SITE_COLOURS = 20;
GM.siteVariable = (number) => (GM.page.sites[number] ? `site-${number % SITE_COLOURS}` : "none");
GM.siteColour = (number) => GM.colour(GM.siteVariable(number));

/* The square before a site's name, in its colour whatever the theme. */
GM.siteDot = (number) => GM.make("span", { class: "dot", style: `background: var(--${GM.siteVariable(number)})` });

GM.isPrinting = () => document.documentElement.dataset.printing !== undefined;

/* The size of a figure of plotly's: the element's height, since print leaves it none, and the width of a sheet on paper. */
GM.plotlySize = (element, height) => {
  element.style.height = `${height}px`;
  return { height, autosize: true, width: GM.isPrinting() ? SHEET_WIDTH : undefined };
};

GM.setTheme = (theme) => {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  for (const drawing of drawings.values()) drawing.theme?.();
};

/* ---- the site that is marked ---- */

GM.select = (number) => {
  const pressed = document.activeElement === document.body ? null : document.activeElement;
  const top = pressed?.getBoundingClientRect().top;
  site = number;
  GM.address.set("site", site);
  const bar = document.getElementById("selected");
  bar.hidden = site === null;
  document.getElementById("selected-text").textContent = site === null ? "" : `Marked: ${GM.siteText(site)}`;
  for (const drawing of drawings.values()) drawing.select?.(site);
  GM.showMarked(document);
  // What was pressed stays where it is, whatever grew or shrank above it.
  if (pressed?.isConnected) window.scrollBy(0, pressed.getBoundingClientRect().top - top);
};
GM.toggle = (number) => GM.select(number === site ? null : number);

/* What names a site by data-mark says whether that site is marked. */
GM.showMarked = (part) => {
  for (const one of part.querySelectorAll("[data-mark]"))
    one.setAttribute(one.tagName === "BUTTON" ? "aria-pressed" : "aria-selected", String(Number(one.dataset.mark) === site));
};

/* ---- views and figures ---- */

GM.view = () => GM.page.views[view];
GM.trace = () => GM.page.traces[GM.view().trace];

GM.showView = (number) => {
  view = number;
  GM.address.set("view", view === GM.page.first_view ? null : view);
  for (const part of document.querySelectorAll("[data-view]")) part.hidden = Number(part.dataset.view) !== view;
  for (const row of document.querySelectorAll("[data-show]")) row.setAttribute("aria-current", String(Number(row.dataset.show) === view));
  const list = document.getElementById("view-switch");
  if (list) list.value = String(view);
  const drawn = [...drawings.keys()];
  for (const id of drawn) draw(GM.figures.find((one) => one.id === id));
};

function draw(figure) {
  const place = document.querySelector(`[data-figure="${CSS.escape(figure.id)}"]`);
  drawings.get(figure.id)?.clear?.();
  const element = GM.make("div");
  place.replaceChildren(element);
  place.dataset.drawn = String(view);
  const drawing = figure.draw(element, GM.page) ?? {};
  drawings.set(figure.id, drawing);
  if (site !== null) drawing.select?.(site);
}

function placeOf(figure) {
  return document.querySelector(`[data-figure="${CSS.escape(figure.id)}"]`);
}

/* Draws the light figures now, the heavy ones when they come near the window; what plotly draws once that is loaded. */
GM.drawFigures = () => {
  const waiting = GM.figures.filter((one) => placeOf(one) && !placed.has(one.id) && (GM.plotly || !one.plotly));
  const watcher = new IntersectionObserver((seen) => {
    for (const one of seen.filter((entry) => entry.isIntersecting)) {
      watcher.unobserve(one.target);
      const figure = GM.figures.find((candidate) => candidate.id === one.target.dataset.figure);
      if (!drawings.has(figure.id)) draw(figure);
    }
  }, { rootMargin: "400px" });
  for (const figure of waiting) {
    placed.add(figure.id);
    if (figure.heavy) watcher.observe(placeOf(figure));
    else draw(figure);
  }
};

GM.drawAll = () => {
  for (const figure of GM.figures) if (placeOf(figure) && !drawings.has(figure.id)) draw(figure);
};

GM.finish = () => {
  performance.mark("gm-ready");
  ready = true;
  document.documentElement.dataset.ready = "true";
};

GM.expose = (name, read) => {
  exposed[name] = read;
};

Object.defineProperty(GM, "state", {
  get: () => ({
    ready,
    view,
    site,
    drawn: [...drawings.keys()],
    ...Object.fromEntries(Object.entries(exposed).map(([name, read]) => [name, read()])),
  }),
});
