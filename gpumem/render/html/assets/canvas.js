"use strict";
/* Surface: a canvas of ours, sharp on every screen, that can be zoomed, moved, hovered and printed.

   new GM.Surface(host, {name, label, height, draw(pen, box), tip(x, y), pick(x, y), keys(event), bothAxes})
     draw is given a 2D context in CSS pixels and {width, height, ratio}; tip returns lines (GM.make elements or text) or
     null; pick is called for a click that was no drag.
   name is what the part shown is called in the page's address.
   surface.view = {x0, x1, y0, y1} within [0, 1]: what part of the picture is shown.
   The wheel zooms once the canvas has the focus (or with Ctrl), so that the page can be scrolled over it. */

const STEP = 1.25;
const SMALLEST = 1e-7;

class Surface {
  constructor(host, options) {
    this.options = options;
    this.view = keptView(options.name);
    this.canvas = GM.make("canvas", { class: "surface", tabindex: "0", role: "application", "aria-label": options.label });
    this.canvas.style.height = `${options.height}px`;
    this.tip = GM.make("div", { class: "tip", hidden: true });
    host.append(GM.make("div", { class: "surface-frame" }, this.canvas, this.tip));
    this.watcher = new ResizeObserver(() => this.redraw());
    this.watcher.observe(this.canvas);
    this.wire();
    this.redraw();
  }

  clear() {
    this.watcher.disconnect();
  }

  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.paint();
    });
  }

  paint() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (!width || !height) return;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.options.draw(pen, { width, height, ratio });
  }

  /* ---- zoom and pan, in shares of the whole picture ---- */

  zoom(factor, x = 0.5, y = 0.5, axes = "x") {
    const view = { ...this.view };
    if (axes !== "y") [view.x0, view.x1] = zoomed(view.x0, view.x1, factor, x);
    if (axes !== "x") [view.y0, view.y1] = zoomed(view.y0, view.y1, factor, y);
    this.show(view);
  }

  pan(dx, dy) {
    const view = { ...this.view };
    [view.x0, view.x1] = moved(view.x0, view.x1, dx * (view.x1 - view.x0));
    [view.y0, view.y1] = moved(view.y0, view.y1, dy * (view.y1 - view.y0));
    this.show(view);
  }

  show(view) {
    this.view = view;
    const shown = [view.x0, view.x1, view.y0, view.y1];
    GM.address.set(this.options.name, shown.join() === "0,1,0,1" ? null : shown.map((one) => Number(one.toFixed(9))).join());
    this.tip.hidden = true;
    this.redraw();
  }

  reset() {
    this.show({ x0: 0, x1: 1, y0: 0, y1: 1 });
  }

  /* ---- what a person does ---- */

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  share(event) {
    const [x, y] = this.place(event);
    const frame = this.options.frame?.() ?? { left: 0, top: 0, right: 0, bottom: 0 };
    const width = this.canvas.clientWidth - frame.left - frame.right;
    const height = this.canvas.clientHeight - frame.top - frame.bottom;
    return [(x - frame.left) / width, (y - frame.top) / height, width, height];
  }

  wire() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return;
      event.preventDefault();
      const [x, y] = this.share(event);
      const axes = this.options.bothAxes ? "both" : event.shiftKey ? "y" : "x";
      this.zoom(Math.pow(STEP, -Math.sign(event.deltaY || event.deltaX)), x, y, axes);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.clientX, y: event.clientY, moved: false };
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.hover(event);
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (!drag.moved && Math.hypot(dx, dy) < 4) return;
      const [, , width, height] = this.share(event);
      this.pan(-dx / width, -dy / height);
      drag = { x: event.clientX, y: event.clientY, moved: true };
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.options.pick?.(...this.place(event));
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const axes = this.options.bothAxes ? "both" : "x";
    const does = {
      "+": () => this.zoom(STEP, 0.5, 0.5, axes),
      "=": () => this.zoom(STEP, 0.5, 0.5, axes),
      "-": () => this.zoom(1 / STEP, 0.5, 0.5, axes),
      "0": () => this.reset(),
      Home: () => this.reset(),
      ArrowLeft: () => this.pan(-0.1, 0),
      ArrowRight: () => this.pan(0.1, 0),
      ArrowUp: () => (event.shiftKey && axes === "x" ? this.zoom(STEP, 0.5, 1, "y") : this.pan(0, -0.1)),
      ArrowDown: () => (event.shiftKey && axes === "x" ? this.zoom(1 / STEP, 0.5, 1, "y") : this.pan(0, 0.1)),
    }[event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does();
  }

  hover(event) {
    const lines = this.options.tip?.(...this.place(event));
    this.canvas.style.cursor = lines?.site !== undefined ? "pointer" : "";
    this.tip.hidden = !lines;
    if (!lines) return;
    this.tip.replaceChildren(...lines.map((line) => (line instanceof Node ? line : GM.make("p", { text: line }))));
    const box = this.tip.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > window.innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const top = Math.min(event.clientY + 16, window.innerHeight - box.height - 8);
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${Math.max(8, top)}px`;
  }

  /* Buttons for those without a wheel, and what the keys do. */
  controls() {
    const axes = this.options.bothAxes ? "both" : "x";
    const button = (text, label, press) => GM.make("button", { type: "button", text, "aria-label": label, title: label, onclick: press });
    const keys = this.options.bothAxes ? "+ − and arrows" : "+ − and arrows, Shift with ↑ ↓ or the wheel for bytes";
    return [
      GM.make("span", { class: "buttons" },
        button("−", "Zoom out", () => this.zoom(1 / (STEP * STEP), 0.5, 0.5, axes)),
        button("+", "Zoom in", () => this.zoom(STEP * STEP, 0.5, 0.5, axes)),
        button("All", "Show all", () => this.reset()),
        ...(this.options.buttons ?? []).map((one) => button(...one))),
      GM.make("span", { class: "quiet wide-only", text: `Click into the picture, then wheel, drag, ${keys}; 0 shows all.` }),
    ];
  }
}

/* The part of the picture that the address names, else all of it. */
function keptView(name) {
  const [x0, x1, y0, y1] = GM.address.numbers(name, 4) ?? [0, 1, 0, 1];
  const isPart = x0 >= 0 && x0 < x1 && x1 <= 1 && y0 >= 0 && y0 < y1 && y1 <= 1;
  return isPart ? { x0, x1, y0, y1 } : { x0: 0, x1: 1, y0: 0, y1: 1 };
}

function zoomed(from, to, factor, at) {
  const width = Math.min(1, Math.max(SMALLEST, (to - from) / factor));
  const middle = from + at * (to - from);
  return moved(middle - at * width, middle - at * width + width, 0);
}

function moved(from, to, by) {
  const width = to - from;
  const start = Math.min(1 - width, Math.max(0, from + by));
  return [start, start + width];
}

/* ---- colours of canvases ---- */

const hex = (text) => {
  const digits = text.replace("#", "");
  const full = digits.length === 3 ? [...digits].map((one) => one + one).join("") : digits;
  return [0, 2, 4].map((at) => parseInt(full.slice(at, at + 2), 16));
};
const mix = (one, other, share) => one.map((value, at) => Math.round(value + (other[at] - value) * share));
const css = (rgb) => `rgb(${rgb.join(",")})`;

/* How bright a colour is, from 0 to 1, and how far two such stand apart, both as WCAG reckons it. */
const brightness = (rgb) => rgb.map((value) => value / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)).reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const contrast = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
const INKS = ["#000000", "#ffffff"];

/* Black or white, whichever is read better on a colour: 4.5 to 1 or more on any. */
const ink = (rgb) => INKS.reduce((best, one) => (contrast(brightness(hex(one)), brightness(rgb)) > contrast(brightness(hex(best)), brightness(rgb)) ? one : best));

/* The colours of the theme as [r, g, b], read once for a drawing. */
GM.palette = () => {
  const names = ["background", "raised", "text", "quiet", "line", "accent", "warn", "error", "allocated", "pending", "idle", "gap", "none"];
  const palette = Object.fromEntries(names.map((name) => [name, hex(GM.colour(name))]));
  const sites = new Map();
  palette.site = (number) => {
    if (!sites.has(number)) sites.set(number, hex(GM.siteColour(number)));
    return sites.get(number);
  };
  return palette;
};

/* Stripes as a fill: `lines` over `ground` (null for none), as far apart as `gap` CSS pixels. */
GM.stripes = (pen, ratio, lines, ground, gap = 6) => {
  const edge = Math.round(gap * ratio);
  const tile = new OffscreenCanvas(edge, edge);
  const to = tile.getContext("2d");
  if (ground) {
    to.fillStyle = ground;
    to.fillRect(0, 0, edge, edge);
  }
  to.strokeStyle = lines;
  to.lineWidth = Math.max(1, ratio * 1.3);
  to.beginPath();
  for (const shift of [-edge, 0, edge]) {
    to.moveTo(shift, edge);
    to.lineTo(shift + edge, 0);
  }
  to.stroke();
  const pattern = pen.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
};

GM.Surface = Surface;
GM.hex = hex;
GM.mix = mix;
GM.css = css;
GM.ink = ink;

/* The lines of a tip that say whose a block is: its site, then its stack. */
GM.stackLines = (stack) => {
  const site = GM.make("p", { class: "tip-site" }, GM.siteDot(stack.site), GM.siteText(stack.site));
  const frames = stack.frames.slice(0, 8).map((number) => GM.make("li", { text: GM.frameText(GM.page.frames[number]) }));
  if (stack.frame_count > 8) frames.push(GM.make("li", { text: `… ${GM.counted(stack.frame_count - 8, "more frame")}` }));
  return frames.length ? [site, GM.make("ol", {}, ...frames)] : [site];
};

/* The block that was clicked, in words that stay and can be copied: how large it is, what is known of it, its whole stack. */
class BlockWords {
  constructor() {
    this.element = GM.make("div", { class: "stack block", role: "status", hidden: true });
    this.told = null;
  }

  /* Tells a block once; the same again is taken back. Returns whether it is told now. */
  toggle(block, title, lines, stack) {
    this.told = this.told === block ? null : block;
    this.element.hidden = this.told === null;
    this.site = stack.site;
    const frames = stack.frames.map((number) => GM.make("li", { text: GM.frameText(GM.page.frames[number]) }));
    const left = stack.frame_count - frames.length;
    const note = !stack.frame_count ? GM.siteTitle(stack.site) : left ? `${GM.counted(left, "more frame")} further out ${left === 1 ? "is" : "are"} not kept on this page.` : "";
    this.element.replaceChildren(
      GM.make("p", {}, GM.make("b", { text: title })), ...lines.map((text) => GM.make("p", { text })),
      ...(frames.length ? [GM.make("p", { class: "quiet", text: "Its call stack, innermost first:" }), GM.make("ol", {}, ...frames)] : []),
      ...(note ? [GM.make("p", { class: "quiet", text: note })] : []));
    return this.told !== null;
  }

  /* Scrolls to what is told, where a row further down was picked. */
  seek() {
    if (this.told !== null) this.element.scrollIntoView({ block: "nearest" });
  }

  /* Nothing is told any more; but for a block of the site that is marked. */
  keepTo(site) {
    if (this.told === null || site === this.site) return;
    this.told = null;
    this.element.hidden = true;
  }
}

GM.BlockWords = BlockWords;

/* A site in a word. */
GM.siteName = (site) => GM.page.sites[site]?.function ?? (site < 0 ? "not listed" : "no Python stack");

/* A legend of sites, each a button that marks it, behind a heading. */
GM.siteLegend = (sites, heading) => {
  const row = GM.make("div", { class: "legend", role: "group", "aria-label": "Sites" });
  if (heading) row.append(GM.make("span", { text: heading }));
  for (const [site, text] of sites) {
    const name = GM.make("span", { class: "name", text: GM.siteText(site) });
    row.append(GM.make("button", { type: "button", "data-site": String(site), "aria-pressed": "false", title: GM.siteTitle(site), onclick: () => GM.toggle(site) }, GM.siteDot(site), name, GM.make("span", { class: "quiet", text })));
  }
  return row;
};

GM.pressLegend = (legend, site) => {
  for (const button of legend.querySelectorAll("[data-site]")) button.setAttribute("aria-pressed", String(Number(button.dataset.site) === site));
};

/* As much of a text as fits, with an ellipsis; nothing where that is little. */
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 8 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= Math.max(1, length >> 3);
  return length > 8 ? `${text.slice(0, length)}…` : "";
}

GM.fitted = fitted;
