"use strict";
/* The peak by call: an icicle, callers above what they call, worked with mouse or keyboard. */

const ROW_HEIGHT = 24;
const CHARACTER_WIDTH = 7;
const LABEL_LEAST = 24;
const KINDS = [["own", "Your code"], ["full", "All frames"], ["inverted", "From the allocating line"]];
const settings = { kind: "own" };

GM.figures.push({ id: "flame", heavy: true, plotly: true, draw: (element) => new Flame(element).handle() });

class Flame {
  constructor(element) {
    this.view = GM.view();
    this.level = 0; // the frame that is looked into
    this.cursor = 0; // the frame that the keys have reached
    this.plot = GM.make("div", { id: "flame-plot", tabindex: "0", role: "application", "aria-describedby": "flame-readout",
      "aria-label": "The blocks at the peak by call: arrow keys go from frame to frame, Enter looks into one, Escape leads back" });
    this.readout = GM.make("div", { class: "readout", id: "flame-readout", "aria-live": "polite" });
    if (!this.view.flame || !this.view.peak.bytes) {
      element.append(GM.make("p", { class: "quiet", text: "Nothing was held at the peak." }));
      return;
    }
    const choose = (kind) => { settings.kind = kind; this.level = this.cursor = 0; this.redraw(); };
    element.append(
      GM.make("div", { class: "controls" }, GM.choice("flame-kind", "Calls shown", KINDS, settings.kind, choose), GM.make("span", { class: "quiet", text: "Click a frame to look into it; the bar above leads back." }),
        GM.make("span", { class: "quiet wide-only", text: "By keyboard: arrow keys, Enter, Escape." })),
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
    const isNarrow = this.plot.clientWidth < 700;
    const colours = this.colours();
    const ink = { size: 12, color: colours.map((colour) => GM.ink(GM.hex(colour))) }; // plotly writes the outermost frame in the outside font
    const ids = Array.from(bytes, (_, at) => String(at));
    const data = {
      type: "icicle", level: String(this.level), ids, labels: ids.map((_, at) => GM.plotlyText(this.fitted(at, isNarrow))), parents: Array.from(parent, (at) => (at < 0 ? "" : String(at))),
      values: Array.from(bytes), branchvalues: "total", sort: false, hoverinfo: "none", textinfo: "label", tiling: { orientation: "v", pad: 1 },
      marker: { colors: colours, line: { width: 1, color: GM.colour("line") } }, insidetextfont: ink, outsidetextfont: ink, pathbar: { visible: true, thickness: 22 }, leaf: { opacity: 1 },
    };
    const layout = {
      ...GM.plotlySize(this.plot, ROW_HEIGHT * (tree.depth + 1) + 40), margin: { l: 0, r: 0, t: 28, b: 4 }, paper_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: GM.colour("text") }, uniformtext: { minsize: 10, mode: "hide" },
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

  label(at, isShort) {
    if (at === 0) return `the peak: ${GM.bytes(this.nodes.bytes[0])}`;
    const frame = this.frame(at);
    if (!frame) return this.nodes.rest[at] ? "smaller ones" : "no Python stack";
    const function_name = GM.short(frame.function, 56);
    if (isShort) return function_name;
    return `${function_name} (${GM.fileName(frame.file)}:${frame.line})`;
  }

  /* The label, shortened to what its width shows; never so short that it says nothing once it is looked into. */
  fitted(at, isShort) {
    const width = (this.plot.clientWidth * this.nodes.bytes[at]) / this.nodes.bytes[0];
    return GM.short(this.label(at, isShort), Math.max(LABEL_LEAST, Math.floor(width / CHARACTER_WIDTH)));
  }

  /* The colour of its site where a frame leads to one alone; pale where the marked site is not among its blocks. The
     frame that the keys have reached has the colour of text. */
  colours() {
    const { site, parent } = this.nodes;
    const marked = GM.state.site;
    const lit = new Uint8Array(site.length).fill(marked === null ? 1 : 0);
    if (marked !== null)
      for (let at = site.length - 1; at >= 0; at--) if (site[at] === marked || lit[at]) { lit[at] = 1; if (parent[at] >= 0) lit[parent[at]] = 1; }
    const neutral = GM.colour("idle");
    const pale = GM.colour("raised");
    const reached = this.plot.matches(":focus-visible") ? this.cursor : -1;
    return Array.from(site, (one, at) => (at === reached ? GM.colour("text") : !lit[at] ? pale : one < 0 ? neutral : GM.siteColour(one)));
  }

  tell(at) {
    const { bytes, count, parent } = this.nodes;
    const frame = this.frame(at);
    const of = parent[at] > 0 ? `, ${GM.share(bytes[at], bytes[parent[at]])} of its caller` : "";
    this.readout.replaceChildren(
      GM.make("p", {}, GM.make("b", { text: frame ? GM.frameText(frame) : this.label(at) })),
      GM.make("p", { text: `${GM.bytes(bytes[at])} in ${GM.counted(count[at], "block")}, ${GM.share(bytes[at], bytes[0])} of the peak${of}` }));
  }
}
