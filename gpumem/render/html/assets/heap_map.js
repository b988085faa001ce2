"use strict";
/* The heap at chosen moments: segments by address as lines of a map, blocks and gaps in them, one scale for all moments,
   and tables that tell the same. What is beside a gap pins it. */

const { PENDING, GAP, RELEASABLE, MIXED, SEGMENT_MIN, Layout, fittingScale, decode } = GM.heap;
const { pinButton, startingMoment, factRows, noteOf, segmentText, stateLegend } = GM.heapWords;
const { segmentTable, blockTable, fillDetails } = GM.heapTables;
const LEDGE = 4;
const PINNED_SHOWN = 8;
const STATE_TEXT = ["allocated", "pending: freed, another stream may still use it", "gap: idle and cannot go back to the driver", "releasable: empty_cache() would give it back", "small blocks and holes"];

class HeapFigure {
  constructor(element, heap) {
    this.heap = heap;
    this.moments = heap.moments.map(decode);
    this.start = startingMoment(this.moments);
    const kept = GM.address.number("moment");
    this.number = this.moments[kept] ? kept : this.start;
    this.by = GM.address.choice("colours", ["state"]) ?? "site";
    this.marked = null;
    this.scales = new Map();
    const label = GM.make("output", { class: "moment", for: "heap-moment" });
    this.label = label;
    this.slider = GM.make("input", { type: "range", id: "heap-moment", min: "0", max: String(this.moments.length - 1), value: String(this.number), "aria-label": "Moment", oninput: () => this.show(Number(this.slider.value)) });
    const colours = GM.choice("heap-colours", "Colours", [["site", "By site"], ["state", "By state"]], this.by, (by) => {
      this.by = by;
      GM.address.set("colours", by === "state" ? by : null);
      this.surface.redraw();
      this.fillLegend();
    });
    const controls = GM.make("div", { class: "controls" }, colours);
    element.append(GM.make("div", { class: "moments" }, this.slider, label), this.shortcuts(), controls);
    const map = GM.make("div");
    this.facts = GM.make("div", { class: "heap-facts" });
    element.append(GM.make("div", { class: "heap" }, map, this.facts));
    this.surface = new GM.Surface(map, {
      name: "heap",
      label: "Map of the heap: segments with their blocks and gaps; the tables beside and below tell the same",
      height: window.innerWidth < 640 ? 320 : 440,
      bothAxes: true,
      draw: (pen, box) => this.draw(pen, box),
      tip: (x, y) => this.tip(x, y),
      pick: (x, y) => this.pick(x, y),
    });
    controls.append(...this.surface.controls());
    this.legend = GM.make("div");
    this.note = GM.make("p", { class: "quiet" });
    this.pinned = GM.make("div");
    this.words = new GM.BlockWords();
    map.append(this.words.element, this.legend);
    [this.blockTable, this.segmentTable] = [0, 1].map(() => GM.make("details", { class: "as-table" }));
    element.append(this.note, this.pinned, this.blockTable, this.segmentTable);
    this.show(this.number);
  }

  get moment() {
    return this.moments[this.number];
  }

  show(number) {
    this.number = number;
    this.slider.value = String(number);
    GM.address.set("moment", number === this.start ? null : number);
    const text = `${this.moment.names.join(", ")} · ${GM.duration(this.moment.time_ns)}`;
    this.label.textContent = `${text} (${number + 1} of ${this.moments.length})`;
    this.slider.setAttribute("aria-valuetext", text);
    for (const button of this.momentButtons) button.setAttribute("aria-pressed", String(Number(button.dataset.moment) === number));
    this.surface.tip.hidden = true;
    this.words.keepTo(null);
    this.surface.redraw();
    this.fillFacts();
    this.fillLegend();
    this.fillPinned();
    GM.say(this.note, noteOf(this.moment, this.heap));
    this.fillTables();
  }

  /* Buttons for the moments that people look for first. */
  shortcuts() {
    const row = GM.make("div", { class: "choice wrap", role: "group", "aria-label": "Moments" });
    const named = this.moments.map((one, number) => [one.names.find((name) => /^(peak|oom|mark:|end$|start$)/.test(name)), number]);
    for (const [name, number] of named.filter(([name]) => name).slice(0, 14)) row.append(GM.make("button", { type: "button", text: name.replace(/^mark:/, ""), title: name, "data-moment": String(number), onclick: () => this.show(number) }));
    this.momentButtons = row.children;
    return row;
  }

  /* ---- drawing ---- */

  layout(width, height) {
    const pitch = this.pitch(height);
    const lines = Math.max(1, Math.floor(height / pitch));
    const key = `${width} ${lines}`;
    if (!this.scales.has(key)) this.scales.set(key, fittingScale(this.moments, width, lines));
    return { layout: new Layout(this.moment.segments, width, this.scales.get(key)), pitch };
  }

  /* Lines are as high as few segments allow. */
  pitch(height) {
    const most = Math.max(...this.moments.map((one) => one.segments.length));
    return Math.max(18, Math.min(44, height / Math.max(1, most)));
  }

  draw(pen, { width, height, ratio }) {
    const { layout, pitch } = this.layout(width, height);
    const { x0, x1, y0, y1 } = this.surface.view;
    const [zoomX, zoomY] = [1 / (x1 - x0), 1 / (y1 - y0)];
    const place = { layout, pitch, height, width, zoomX, zoomY, left: x0 * width * zoomX, top: y0 * height * zoomY };
    this.place = place;
    const fills = this.fills(pen, ratio);
    if (!this.moment.segments.length) {
      pen.fillStyle = GM.css(fills.palette.quiet);
      pen.fillText("No segment is held at this moment.", 8, 20);
    }
    this.drawSegments(pen, place, fills);
    this.drawCells(pen, place, fills);
    this.drawEdges(pen, place, fills);
  }

  fills(pen, ratio) {
    const palette = GM.palette();
    const ground = GM.css(palette.background);
    return {
      palette,
      gap: GM.stripes(pen, ratio, GM.css(palette.gap), GM.css(GM.mix(palette.gap, palette.background, 0.75))),
      releasable: GM.css(GM.mix(palette.idle, palette.background, 0.55)),
      mixed: GM.stripes(pen, ratio, GM.css(palette.idle), GM.css(palette.none), 4),
      pending: GM.stripes(pen, ratio, ground, null, 8),
      marked: GM.stripes(pen, ratio, GM.css(palette.text), null, 7),
    };
  }

  /* The rectangle of a piece on the canvas; null where it is out of sight. */
  rectangle(place, line, x, width) {
    const left = x * place.zoomX - place.left;
    const top = line * place.pitch * place.zoomY - place.top;
    const wide = width * place.zoomX;
    const high = (place.pitch - LEDGE) * place.zoomY;
    if (left > place.width || left + wide < 0 || top > place.height || top + high < 0) return null;
    return [left, top, wide, high];
  }

  drawSegments(pen, place, { palette }) {
    pen.fillStyle = GM.css(palette.raised);
    pen.strokeStyle = GM.css(palette.quiet);
    pen.lineWidth = 1;
    this.moment.segments.forEach((bytes, row) => {
      const length = Math.max(bytes, SEGMENT_MIN / place.layout.perByte);
      place.layout.pieces(row, 0, length, (line, x, width) => {
        const box = this.rectangle(place, line, x, width);
        if (!box) return;
        pen.fillRect(...box);
        pen.strokeRect(box[0] - 0.5, box[1] - 0.5, box[2] + 1, box[3] + 1);
      });
    });
  }

  /* Every cell, one colour after the other: changing the colour is what costs. */
  drawCells(pen, place, fills) {
    const { cells } = this.moment;
    const byFill = new Map();
    for (let cell = 0; cell < cells.count; cell++) {
      const fill = this.fillOf(cell, fills);
      if (!byFill.has(fill)) byFill.set(fill, []);
      byFill.get(fill).push(cell);
    }
    for (const [fill, list] of byFill) {
      pen.fillStyle = fill;
      for (const cell of list) this.eachBox(place, cell, (box) => pen.fillRect(...box));
    }
    pen.fillStyle = fills.pending;
    for (let cell = 0; cell < cells.count; cell++) if (cells.state[cell] === PENDING) this.eachBox(place, cell, (box) => pen.fillRect(...box));
  }

  eachBox(place, cell, see) {
    const { cells } = this.moment;
    place.layout.pieces(cells.segment[cell], cells.offset[cell], cells.cell_bytes[cell], (line, x, width) => {
      const box = this.rectangle(place, line, x, width);
      if (box) see(box);
    });
  }

  fillOf(cell, { palette, gap, releasable, mixed }) {
    const { cells } = this.moment;
    const state = cells.state[cell];
    if (state === GAP) return gap;
    if (state === RELEASABLE) return releasable;
    if (state === MIXED) return mixed;
    const site = this.siteOf(cell);
    const colour = this.by === "site" ? palette.site(site) : state === PENDING ? palette.pending : palette.allocated;
    return GM.css(GM.mix(colour, palette.background, this.marked !== null && site !== this.marked ? 0.75 : 0));
  }

  /* Lines between blocks, outlines of those that pin a gap and of the marked site, and labels where there is room. */
  drawEdges(pen, place, { palette, marked }) {
    const { cells } = this.moment;
    const thin = GM.css(GM.mix(palette.background, palette.text, 0.1));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let cell = 0; cell < cells.count; cell++) {
      if (!cells.block_count[cell]) continue;
      const isMarked = this.marked !== null && this.siteOf(cell) === this.marked && cells.state[cell] !== MIXED;
      this.eachBox(place, cell, (box) => {
        const [x, y, wide, high] = box;
        if (wide >= 4) {
          pen.lineWidth = 1;
          pen.strokeStyle = thin;
          pen.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
        }
        if (cells.is_pinning[cell]) this.outline(pen, box, GM.css(palette.error));
        if (isMarked) {
          pen.fillStyle = marked;
          pen.fillRect(...box);
          this.outline(pen, box, GM.css(palette.text));
        } else if (wide > 70 && high >= 12 && cells.state[cell] !== MIXED) this.name(pen, cell, box, palette);
      });
    }
  }

  outline(pen, [x, y, wide, high], colour) {
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 2;
    if (wide >= 5) pen.strokeRect(x + 1, y + 1, wide - 2, high - 2);
    else pen.fillRect(x, y - 1, Math.max(1.5, wide), 3);
  }

  name(pen, cell, [x, y, wide, high], palette) {
    const site = this.siteOf(cell);
    const text = GM.fitted(pen, GM.siteName(site), wide - 10);
    if (!text) return;
    const colour = this.by === "site" ? palette.site(site) : this.moment.cells.state[cell] === PENDING ? palette.pending : palette.allocated;
    pen.fillStyle = GM.ink(this.marked !== null && this.marked !== site ? palette.background : colour);
    pen.fillText(text, Math.max(x, 0) + 5, y + high / 2);
  }

  siteOf(cell) {
    return this.stackOf(cell)?.site ?? -1;
  }

  /* ---- what a person points at ---- */

  at(x, y) {
    const { layout, pitch, zoomX, zoomY, left, top } = this.place ?? {};
    if (!layout) return null;
    const line = Math.floor((y + top) / zoomY / pitch);
    const across = (x + left) / zoomX;
    if (across < 0 || across >= layout.width) return null;
    const along = line * layout.width + across;
    let segment = layout.starts.length - 1;
    while (segment >= 0 && layout.starts[segment] > along) segment--;
    if (segment < 0) return null;
    const offset = (along - layout.starts[segment]) / layout.perByte;
    if (offset >= Math.max(this.moment.segments[segment], SEGMENT_MIN / layout.perByte)) return null;
    return { segment, cell: this.cellAt(segment, offset) };
  }

  cellAt(segment, offset) {
    const { cells } = this.moment;
    let [low, high] = [0, cells.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (cells.segment[middle] < segment || (cells.segment[middle] === segment && cells.offset[middle] <= offset)) low = middle + 1;
      else high = middle;
    }
    const cell = low - 1;
    const holds = cell >= 0 && cells.segment[cell] === segment && offset < cells.offset[cell] + cells.cell_bytes[cell];
    return holds ? cell : -1;
  }

  tip(x, y) {
    const hit = this.at(x, y);
    if (!hit) return null;
    const segment = segmentText(this.moment, hit.segment);
    if (hit.cell < 0) return [GM.make("b", { text: this.heap.basis === "allocated" ? "" : "between requests" }), segment];
    const [title, ...lines] = this.told(hit.cell);
    const tip = [GM.make("b", { text: title }), ...lines, segment];
    if (!this.isOfOneSite(hit.cell)) return tip;
    return Object.assign([...tip, ...GM.stackLines(this.stackOf(hit.cell))], { site: this.siteOf(hit.cell) });
  }

  /* A cell in words: how large and in which state, then what else is known of it. */
  told(cell) {
    const { cells } = this.moment;
    const [state, count] = [cells.state[cell], cells.block_count[cell]];
    const runs = count > 1 ? ` in ${GM.counted(count, "block")}` : "";
    const lines = [`${GM.bytes(cells.cell_bytes[cell])}${runs}, ${STATE_TEXT[state]}`];
    if (state === MIXED) lines.push(`${GM.bytes(cells.allocated_bytes[cell])} of it ${this.heap.basis === "allocated" ? "allocated" : "requested"}`);
    if (cells.is_pinning[cell]) lines.push("beside a gap: while this lives, the gap cannot go back");
    if (count === 1) lines.push(cells.event[cell] < 0 ? "made before the recording" : `made by event ${GM.count(cells.event[cell])}`);
    return lines;
  }

  isOfOneSite(cell) {
    return this.moment.cells.block_count[cell] > 0 && this.moment.cells.state[cell] !== MIXED;
  }

  stackOf(cell) {
    return GM.view().stacks[this.moment.cells.stack[cell]];
  }

  pick(x, y) {
    const hit = this.at(x, y);
    if (hit && hit.cell >= 0 && this.isOfOneSite(hit.cell)) this.tell(hit.cell);
    else GM.select(null);
  }

  /* Tells a block in words and marks its site; the same block again takes both back. */
  tell(cell) {
    const { cells, addresses } = this.moment;
    const segment = cells.segment[cell];
    const [title, ...lines] = this.told(cell);
    const address = `at 0x${(addresses[segment] + cells.offset[cell]).toString(16)}, ${segmentText(this.moment, segment)}`;
    const isTold = this.words.toggle(`${this.number} ${cell}`, title, [...lines, address], this.stackOf(cell));
    GM.select(isTold ? this.siteOf(cell) : null);
  }

  /* ---- the same in words ---- */

  fillFacts() {
    const { moment } = this;
    const rows = factRows(moment).map(([name, note, bytes, share, level, evidence]) =>
      GM.make("tr", { class: `level-${level}`, title: evidence ?? "" },
        GM.make("td", { text: name }, ...(note ? [GM.make("span", { class: "where", text: note })] : [])),
        GM.make("td", { class: "number", text: GM.bytes(bytes) }),
        GM.make("td", { class: "number quiet", text: share })));
    const segments = `${GM.bytes(moment.reserved_bytes)} reserved in ${GM.counted(moment.segment_count, "segment")}.`;
    const missing = moment.ledger.process_bytes === null ? " NVML gave no figure of this process." : "";
    this.facts.replaceChildren(GM.make("p", { class: "quiet", text: segments + missing }), GM.make("table", {}, GM.make("tbody", {}, ...rows)));
  }

  /* The segments that cannot go back, each with the sites whose blocks are beside its gaps. */
  fillPinned() {
    const { moment } = this;
    if (moment.figures === null) return this.pinned.replaceChildren();
    const heading = GM.make("h3", { text: "What pins the gaps" });
    if (!moment.pinned.length) return this.pinned.replaceChildren(heading, GM.make("p", { class: "quiet", text: "No segment is held back by blocks in it." }));
    const number = (label, text) => GM.make("td", { class: "number", "data-label": label, text });
    const rows = moment.pinned.slice(0, PINNED_SHOWN).map((one) => {
      const pins = one.pins.slice(0, 3).map((pin) => pinButton(pin));
      if (one.pin_count > pins.length) pins.push(GM.make("span", { class: "quiet", text: `and ${GM.counted(one.pin_count - pins.length, "more site")}` }));
      return GM.make("tr", {}, number("gaps", GM.bytes(one.gap_bytes)), number("of", GM.bytes(moment.segments[one.segment])), number("in use", `${GM.bytes(one.held_bytes)} in ${GM.counted(one.block_count, "block")}`), GM.make("td", {}, ...pins));
    });
    const head = GM.make("tr", {}, ...["Gaps", "Segment", "In use"].map((text) => GM.make("th", { class: "number", text })), GM.make("th", { text: "Beside the gaps" }));
    const table = GM.make("table", { class: "folds pinned" }, GM.make("thead", {}, head), GM.make("tbody", {}, ...rows));
    const more = moment.pinned_count > rows.length ? [GM.make("p", { class: "quiet", text: `And ${GM.counted(moment.pinned_count - rows.length, "more segment")} with smaller gaps.` })] : [];
    return this.pinned.replaceChildren(heading, GM.make("div", { class: "scroll" }, table), ...more);
  }

  fillLegend() {
    const { moment } = this;
    const sums = new Map();
    for (let cell = 0; cell < moment.cells.count; cell++) if (moment.cells.block_count[cell] && moment.cells.state[cell] < GAP) sums.set(this.siteOf(cell), (sums.get(this.siteOf(cell)) ?? 0) + moment.cells.cell_bytes[cell]);
    const most = [...sums].sort((one, other) => other[1] - one[1] || one[0] - other[0]).slice(0, this.by === "site" ? 8 : 0);
    const states = GM.make("div", { class: "legend" });
    for (const [kind, text] of stateLegend(moment, this.by, this.heap)) states.append(GM.make("span", {}, GM.make("span", { class: `patch patch-${kind}` }), text));
    const sites = GM.siteLegend(most.map(([site, bytes]) => [site, GM.bytes(bytes)]));
    this.legend.replaceChildren(states, sites);
    GM.pressLegend(sites, this.marked);
  }

  fillTables() {
    fillDetails(this.segmentTable, segmentTable(this.moment));
    const pick = (cell) => {
      this.tell(cell);
      this.words.seek();
    };
    fillDetails(this.blockTable, blockTable(this.moment, (cell) => this.siteOf(cell), (cell) => this.told(cell), pick));
    GM.showMarked(this.blockTable);
  }

  select(site) {
    this.marked = site;
    this.words.keepTo(site);
    GM.pressLegend(this.legend, site);
    this.surface.redraw();
  }
}

GM.figures.push({
  id: "heap",
  heavy: true,
  draw(element) {
    const { heap } = GM.view();
    if (!heap?.moments.length) {
      element.append(GM.make("p", { class: "quiet", text: "No heap was recorded on this device." }));
      return {};
    }
    const figure = new HeapFigure(element, heap);
    GM.expose("heap", () => ({ moment: figure.moment.names, number: figure.number, by: figure.by, view: { ...figure.surface.view }, marked: figure.marked }));
    return { select: (site) => figure.select(site), theme: () => figure.surface.paint(), clear: () => figure.surface.clear() };
  },
});
