"use strict";
/* The peak by call: an icicle, callers above what they call, worked with mouse or keyboard. */

const ROW_HEIGHT = 24;
const FONT_SIZE = 12;
const PADDING = 8;
const NARROWEST = 4; // pixels of a character, about
const LABEL_LEAST = 26; // pixels
const pen = new OffscreenCanvas(1, 1).getContext("2d");
const KINDS = [["own", "Your code"], ["full", "All frames"], ["inverted", "From the allocating line"]];
const settings = { kind: "own", search: "" };

GM.figures.push({ id: "flame", heavy: true, plotly: true, draw: (element) => new Flame(element).handle() });

class Flame {
  constructor(element) {
    this.view = GM.view();
    settings.kind = GM.address.choice("calls", KINDS.map(([kind]) => kind)) ?? "own";
    this.level = GM.address.number("level") ?? 0; // the frame that is looked into
    this.cursor = this.level; // the frame that the keys have reached
    this.plot = GM.make("div", { id: "flame-plot", tabindex: "0", role: "application", "aria-describedby": "flame-readout",
      "aria-label": "The blocks at the peak by call: arrow keys go from frame to frame, Enter looks into one, Escape leads back" });
    this.readout = GM.make("div", { class: "readout", id: "flame-readout", "aria-live": "polite" });
    if (!this.view.flame || !this.view.peak.bytes) {
      element.append(GM.make("p", { class: "quiet", text: "Nothing was held at the peak." }));
      return;
    }
    const choose = (kind) => { settings.kind = kind; this.level = this.cursor = 0; this.redraw(); };
    settings.search = GM.address.get("frames") ?? "";
    const search = GM.make("input", { type: "search", id: "flame-search", placeholder: "Search frames", "aria-label": "Search frames", value: settings.search });
    search.addEventListener("input", () => { settings.search = search.value; GM.address.set("frames", search.value); this.redraw(); });
    this.found = GM.make("span", { class: "quiet", id: "flame-found", role: "status" });
    element.append(
      GM.make("div", { class: "controls" }, GM.choice("flame-kind", "Calls shown", KINDS, settings.kind, choose), search, this.found),
      GM.make("p", { class: "quiet screen-only" }, "Click a frame to look into it; the bar above leads back.", GM.make("span", { class: "wide-only", text: " By keyboard: arrow keys, Enter, Escape." })),
      GM.make("p", { class: "quiet", text: `Who held the ${GM.bytes(this.view.peak.bytes)} at the peak: widths are bytes, callers stand above what they call.` }),
      this.plot, this.readout);
    this.isDrawn = true;
    for (const name of ["focus", "blur"]) this.plot.addEventListener(name, () => this.plot.isConnected && this.redraw());
    this.plot.addEventListener("keydown", (event) => this.onKey(event));
    GM.expose("flame", () => ({ ...settings, level: this.level, cursor: this.cursor }));
    this.redraw();
  }

  handle() {
    if (!this.isDrawn) return {};
    return { select: () => this.redraw(), theme: () => this.redraw(), clear: () => GM.plotly.purge(this.plot) };
  }

  redraw() {
    const tree = this.view.flame[settings.kind];
    this.nodes = Object.fromEntries(["parent", "frame", "bytes", "count", "site", "rest"].map((name) => [name, GM.column(tree[name])]));
    const { parent, bytes } = this.nodes;
    if (bytes[this.level] === undefined) this.level = this.cursor = 0;
    GM.address.set("calls", settings.kind === "own" ? null : settings.kind);
    GM.address.set("level", this.level || null);
    const isFound = this.findFrames();
    const colours = this.colours(isFound);
    const ink = { size: FONT_SIZE, color: colours.map((colour) => GM.ink(GM.hex(colour))) }; // plotly writes the outermost frame in the outside font
    const ids = Array.from(bytes, (_, at) => String(at));
    const data = {
      type: "icicle", level: String(this.level), ids, labels: ids.map((_, at) => this.fitted(at, isFound?.[at])), parents: Array.from(parent, (at) => (at < 0 ? "" : String(at))),
      values: Array.from(bytes), branchvalues: "total", sort: false, hoverinfo: "none", textinfo: "label", tiling: { orientation: "v", pad: 1 },
      marker: { colors: colours, line: { width: 1, color: GM.colour("line") } }, insidetextfont: ink, outsidetextfont: ink, pathbar: { visible: true, thickness: 22 }, leaf: { opacity: 1 },
    };
    const layout = {
      ...GM.plotlySize(this.plot, ROW_HEIGHT * (tree.depth + 1) + 40), margin: { l: 0, r: 0, t: 28, b: 4 }, paper_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: FONT_SIZE, color: GM.colour("text") }, uniformtext: { minsize: 10, mode: "hide" },
    };
    GM.plotly.react(this.plot, [data], layout, { displaylogo: false, responsive: true, displayModeBar: false });
    if (!this.isWired) this.wire();
    this.tell(this.cursor);
  }

  wire() {
    this.isWired = true;
    this.plot.on("plotly_hover", (event) => this.tell(Number(event.points[0].id)));
    this.plot.on("plotly_icicleclick", (event) => {
      if (event.nextLevel !== undefined) this.level = Number(event.nextLevel) || 0;
      this.pick(Number(event.points[0].id));
      return false; // the zoom is ours: plotly's own would be undone when a site is marked
    });
  }

  /* Takes a frame, and marks its site where it leads to one alone. */
  pick(at) {
    this.cursor = at;
    const site = this.nodes.site[at];
    if (site >= 0) GM.select(site);
    else this.redraw();
  }

  onKey(event) {
    const { parent } = this.nodes;
    if (event.key === "Enter") {
      if (parent.includes(this.cursor)) this.level = this.cursor;
      this.pick(this.cursor);
    } else if (event.key === "Escape" && this.level > 0) {
      this.cursor = this.level;
      this.level = parent[this.level];
      event.stopPropagation(); // Escape also clears the marked site
      this.redraw();
    } else {
      const next = this.beside(event.key);
      if (next === undefined) return;
      if (next >= 0) this.cursor = next;
      this.redraw();
    }
    event.preventDefault();
  }

  /* The frame that an arrow key leads to, within what is looked into; -1 where there is none, undefined for other keys. */
  beside(key) {
    const { parent } = this.nodes;
    if (key === "ArrowDown") return parent.indexOf(this.cursor);
    if (key === "ArrowUp") return this.cursor === this.level ? -1 : parent[this.cursor];
    if (key !== "ArrowLeft" && key !== "ArrowRight") return undefined;
    if (this.cursor === this.level) return -1;
    const isSibling = (at) => at === parent[this.cursor];
    return key === "ArrowRight" ? parent.findIndex((at, node) => node > this.cursor && isSibling(at)) : parent.subarray(0, this.cursor).findLastIndex(isSibling);
  }

  frame(at) {
    return this.nodes.frame[at] < 0 ? null : GM.page.frames[this.nodes.frame[at]];
  }

  /* What a frame may be called, the longest first. */
  names(at) {
    if (at === 0) return [`the peak: ${GM.bytes(this.nodes.bytes[0])}`];
    const frame = this.frame(at);
    if (!frame) return [this.nodes.rest[at] ? "smaller ones" : "no Python stack"];
    const name = GM.short(frame.function, 56);
    const last = /^[\w.<>]+$/.test(name) ? name.split(".").pop() : name; // of a Python function without its class
    const line = frame.line ? `:${frame.line}` : "";
    const lastPart = (file) => GM.short(file.split("/").pop(), 48);
    const places = [GM.frameText(frame, GM.fileName), GM.frameText({ ...frame, function: name }, GM.fileName), GM.frameText({ ...frame, function: name }, lastPart)];
    return [...places, `${name}${line}`, `${last}${line}`, last];
  }

  /* The longest name that the width has room for, bold where it was searched for; none where that says nothing. */
  fitted(at, isFound) {
    const width = this.plot.clientWidth * Math.min(1, this.nodes.bytes[at] / this.nodes.bytes[this.level]) - PADDING;
    if (width < LABEL_LEAST) return "";
    pen.font = `${isFound ? "bold" : ""} ${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
    const fits = (text) => pen.measureText(text).width <= width;
    const names = this.names(at);
    let name = names.find(fits) ?? `${names.at(-1).slice(0, Math.ceil(width / NARROWEST))}…`;
    while (name.length > 3 && !fits(name)) name = `${name.slice(0, -2)}…`;
    if (!fits(name)) return "";
    return isFound ? `<b>${GM.plotlyText(name)}</b>` : GM.plotlyText(name);
  }

  /* Which frames have all words that are searched for, and what they hold, nested ones once; null without a search. */
  findFrames() {
    const words = settings.search.toLowerCase().split(/\s+/).filter(Boolean);
    this.found.textContent = "";
    if (!words.length) return null;
    const { parent, bytes } = this.nodes;
    const isFound = Uint8Array.from(parent, (_, at) => {
      const frame = this.frame(at);
      const text = frame ? GM.frameText(frame).toLowerCase() : "";
      return Number(text !== "" && words.every((word) => text.includes(word)));
    });
    const isWithin = new Uint8Array(parent.length);
    let [held, count] = [0, 0];
    parent.forEach((above, at) => {
      isWithin[at] = above >= 0 && (isFound[above] || isWithin[above]);
      count += isFound[at];
      if (isFound[at] && !isWithin[at]) held += bytes[at];
    });
    GM.say(this.found, count ? `${GM.counted(count, "frame")} found: ${GM.bytes(held)}, ${GM.share(held, bytes[0])} of the peak` : "no frame found");
    return isFound;
  }

  /* Which frames keep their colour: all; else those searched for with what they call, or those of the marked site;
     and their callers. */
  lit(isFound) {
    const { site, parent } = this.nodes;
    const marked = GM.state.site;
    if (!isFound && marked === null) return new Uint8Array(site.length).fill(1);
    const lit = isFound ? Uint8Array.from(isFound) : Uint8Array.from(site, (one) => Number(one === marked));
    if (isFound) parent.forEach((above, at) => { if (above >= 0 && lit[above]) lit[at] = 1; });
    for (let at = site.length - 1; at > 0; at--) if (lit[at]) lit[parent[at]] = 1;
    return lit;
  }

  /* The colour of its site where a frame leads to one alone; the frame that the keys have reached has that of text. */
  colours(isFound) {
    const lit = this.lit(isFound);
    const neutral = GM.colour("idle");
    const pale = GM.colour("raised");
    const reached = this.plot.matches(":focus-visible") ? this.cursor : -1;
    return Array.from(this.nodes.site, (one, at) => (at === reached ? GM.colour("text") : !lit[at] ? pale : one < 0 ? neutral : GM.siteColour(one)));
  }

  tell(at) {
    const { bytes, count, parent } = this.nodes;
    const frame = this.frame(at);
    const of = parent[at] > 0 ? `, ${GM.share(bytes[at], bytes[parent[at]])} of its caller` : "";
    this.readout.replaceChildren(
      GM.make("p", {}, GM.make("b", { text: frame ? GM.frameText(frame) : this.names(at)[0] })),
      GM.make("p", { text: `${GM.bytes(bytes[at])} in ${GM.counted(count[at], "block")}, ${GM.share(bytes[at], bytes[0])} of the peak${of}` }));
  }
}
