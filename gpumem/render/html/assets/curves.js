"use strict";
/* Memory over time: curves or bytes by site, along time or events, with marks and segment events in rows below. */

const { momentOf, withLast, line, legendEntry, withAlpha, alpha, highest, byteTicks, lastNotAfter, nearest } = GM.curveParts;
const SITES_STACKED = 9;
const MARKS_LINED = 40;
const HOLDERS_TOLD = 4;
const NAME_WIDTH = 16;
const ZOOM = 2;
const HEIGHT = 460;
const HEIGHT_PRINTED = 170;
const settings = { axis: "time", mode: "curves", whole: false, point: null };

GM.expose("curves", () => ({ ...settings }));
GM.figures.push({ id: "curves", plotly: true, draw: (element) => new Curves(element).handle() });

const TIME_UNITS = [[7200e9, 3600e9, "h"], [300e9, 60e9, "min"], [2e9, 1e9, "s"], [2e6, 1e6, "ms"], [0, 1e3, "us"]];

class Curves {
  constructor(element) {
    settings.point = null;
    settings.mode = GM.address.choice("curves", ["sites"]) ?? "curves";
    settings.axis = GM.address.choice("along", ["events"]) ?? "time";
    settings.whole = GM.address.get("height") === "card";
    this.view = GM.view();
    this.trace = GM.trace();
    [, this.unit, this.unitName] = TIME_UNITS.find(([least]) => this.trace.duration_ns >= least);
    this.read();
    this.range = this.keptRange() ?? this.beginning();
    this.build(element);
    this.redraw();
  }

  handle() {
    return {
      select: () => this.redraw(),
      theme: () => this.redraw(),
      clear: () => GM.plotly.purge(this.plot),
    };
  }

  read() {
    const { curves, shares, readings, driver_events: driver } = this.view;
    const all = (group) => Object.fromEntries(Object.entries(group).map(([name, ref]) => [name, ref?.column ? GM.column(ref) : ref]));
    this.curves = curves && all(curves);
    this.readings = all(readings);
    this.driver = driver && all(driver);
    this.shares = shares && { ...all(shares), held_bytes: shares.held_bytes.map(GM.column) };
    this.word = this.view.basis === "allocated" ? "allocated" : "requested";
    if (this.curves) this.active = Float64Array.from(this.curves.held_bytes, (held, at) => held + this.curves.pending_bytes[at]);
    if (this.shares) this.heldAtShares = Float64Array.from(this.shares.event, (event) => this.curves.held_bytes[lastNotAfter(this.curves.event, event)]);
  }

  build(element) {
    this.plot = GM.make("div", { id: "curves-plot", role: "img", "aria-label": `Memory over time: ${this.word}, reserved and NVML's bytes` });
    this.note = GM.make("p", { class: "quiet", id: "curves-note" });
    this.readout = GM.make("div", { class: "readout", id: "curves-readout", "aria-live": "polite" });
    const last = this.curves ? this.curves.event.length - 1 : this.readings.event.length - 1;
    this.slider = GM.make("input", { type: "range", id: "curves-moment", min: 0, max: Math.max(0, last), value: 0, "aria-label": "Moment to read" });
    this.slider.addEventListener("input", () => this.tell(Number(this.slider.value), []));
    const change = (name) => (value) => {
      if (name === "axis" && settings.axis !== value) this.range = null;
      settings[name] = value;
      this.range ??= this.beginning();
      this.redraw();
    };
    const controls = GM.make("div", { class: "controls" },
      GM.choice("curves-mode", "What is drawn", [["curves", "Curves"], ["sites", "By site"]], settings.mode, change("mode")),
      GM.choice("curves-axis", "Along", [["time", "Time"], ["events", "Events"]], settings.axis, change("axis")),
      ...(this.view.capacity_bytes ? [GM.choice("curves-whole", "Height", [["", "Fit"], ["card", "Whole card"]], settings.whole ? "card" : "", (value) => { settings.whole = value === "card"; this.redraw(); })] : []));
    const button = (text, label, press) => GM.make("button", { type: "button", text, "aria-label": label, title: label, onclick: press });
    controls.append(
      GM.make("span", { class: "buttons" },
        button("−", "Zoom out around the moment", () => this.zoom(1 / ZOOM)),
        button("+", "Zoom in around the moment", () => this.zoom(ZOOM)),
        button("All", "Show all of the time", () => this.show(this.everything()))),
      GM.make("span", { class: "quiet wide-only", text: "Drag across the picture to look closer." }));
    this.legend = GM.make("div", { class: "legend", id: "curves-legend" });
    this.line = GM.make("div", { class: "told", hidden: true });
    element.append(controls, this.legend, GM.make("div", { class: "surface-frame" }, this.plot, this.line), this.note, GM.make("label", { class: "moment" }, "Moment ", this.slider), this.readout);
  }

  /* The part shown, so many times narrower, with the moment that is told in the middle as far as there is room. */
  zoom(factor) {
    const [first, last] = this.everything();
    const [from, to] = this.range ?? [first, last];
    const half = Math.min(last - first, (to - from) / factor) / 2;
    const middle = this.at(momentOf(this.curves ?? this.readings, settings.point));
    const start = Math.max(first, Math.min(last - 2 * half, middle - half));
    this.show([start, start + 2 * half]);
  }

  show(range) {
    GM.plotly.relayout(this.plot, { "xaxis.range": range });
  }

  x(group) {
    return settings.axis === "time" ? Float64Array.from(group.time_ns, (ns) => ns / this.unit) : group.event;
  }

  /* The same, and the end of the trace: levels stay as the last event left them. */
  untilEnd(group) {
    return [...this.x(group), settings.axis === "time" ? this.trace.duration_ns / this.unit : Math.max(0, this.trace.events - 1)];
  }

  /* The part of the axis that the address names. */
  keptRange() {
    const [from, to] = [GM.address.number("from"), GM.address.number("to")];
    return from !== null && to !== null && from < to ? [from, to].map((at) => (settings.axis === "time" ? at / this.unit : at)) : null;
  }

  keep() {
    const all = this.beginning() ?? this.everything();
    const isPart = this.range && this.range.some((at, end) => at !== all[end]);
    const [from, to] = isPart ? this.range.map((at) => Math.round(settings.axis === "time" ? at * this.unit : at)) : [null, null];
    const kept = { curves: settings.mode === "sites" ? "sites" : null, along: settings.axis === "events" ? "events" : null, height: settings.whole ? "card" : null, from, to };
    for (const [name, value] of Object.entries(kept)) GM.address.set(name, value);
  }

  redraw() {
    this.keep();
    const { traces, rows } = this.parts();
    this.drawn = traces;
    this.legend.replaceChildren(...traces.map(legendEntry));
    GM.plotly.react(this.plot, [...traces, ...rows], this.layout(rows), { displaylogo: false, responsive: true, displayModeBar: false });
    if (!this.isWired) this.wire();
    if (settings.point === null || settings.point > Number(this.slider.max)) this.tell(this.peakPoint(), []);
    else this.tell(settings.point, []);
  }

  wire() {
    this.isWired = true;
    this.plot.on("plotly_hover", (event) => this.hover(event));
    this.plot.on("plotly_click", (event) => {
      const found = event.points.find((point) => point.data.meta?.site !== undefined && point.data.meta.site !== null);
      if (found && settings.mode === "sites") GM.toggle(found.data.meta.site);
    });
    this.plot.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => key.startsWith("xaxis"))) return;
      this.range = change["xaxis.autorange"] ? this.everything() : [...this.plot.layout.xaxis.range];
      this.keep();
      const axis = this.heightAxis();
      GM.plotly.relayout(this.plot, { "yaxis.range": axis.range, "yaxis.tickvals": axis.tickvals, "yaxis.ticktext": axis.ticktext, annotations: this.notes() });
    });
    this.plot.on("plotly_afterplot", () => this.showTold());
  }

  /* ---- what is drawn ---- */

  parts() {
    const traces = settings.mode === "sites" && this.shares ? this.siteTraces() : this.curveTraces();
    return { traces: [...traces, ...this.outsideTraces()], rows: this.rows() };
  }

  curveTraces() {
    if (!this.curves) return [];
    const x = this.untilEnd(this.curves);
    const traces = [line("reserved", x, withLast(this.curves.reserved_bytes), "reserved", { fill: "tozeroy", fillcolor: alpha("reserved", 0.14) })];
    if (this.curves.pending_bytes.some((bytes) => bytes)) traces.push(line("active", x, withLast(this.active), "active", { line: { dash: "dot" } }));
    traces.push(line(this.word, x, withLast(this.curves.held_bytes), "allocated", { fill: "tozeroy", fillcolor: alpha("allocated", 0.3) }));
    const at = this.shares ? this.shares.sites.indexOf(GM.state.site) : -1;
    if (at >= 0) {
      const colour = GM.colour("error");
      traces.push(line("marked site", this.untilEnd(this.shares), withLast(this.shares.held_bytes[at]), "error", { fill: "tozeroy", fillcolor: colour, line: { width: 1 } }));
    }
    return traces;
  }

  siteTraces() {
    const { sites, held_bytes: columns } = this.shares;
    const chosen = sites.map((_, at) => at).filter((at) => at < SITES_STACKED || sites[at] === GM.state.site);
    const x = this.untilEnd(this.shares);
    const rest = Float64Array.from(this.heldAtShares, (held, row) => chosen.reduce((left, at) => left - columns[at][row], held));
    const marked = GM.state.site;
    const layer = (site, y, colour, name) => ({
      type: "scatter", mode: "lines", x, y, name, stackgroup: "sites", hoverinfo: "none", meta: { site },
      line: { width: 0.5, color: colour, shape: "hv" }, fillcolor: withAlpha(colour, marked === null || marked === site ? 0.85 : 0.2),
    });
    const traces = chosen.map((at) => layer(sites[at], withLast(columns[at]), GM.siteColour(sites[at]), GM.siteText(sites[at])));
    if (rest.some((bytes) => bytes > 0)) traces.push(layer(null, withLast(rest), GM.colour("idle"), `${GM.counted(Math.max(1, this.view.site_count - chosen.length), "other site")}`));
    if (this.curves) traces.push(line("reserved", this.untilEnd(this.curves), withLast(this.curves.reserved_bytes), "reserved"));
    return traces;
  }

  /* NVML's readings and the bounds: what lies outside the allocator. */
  outsideTraces() {
    const traces = [];
    for (const [field, name, colour, dash] of [["process_bytes", "NVML: this process", "process", "dash"], ["used_bytes", "NVML: whole card", "device", "dashdot"]]) {
      const y = this.readings[field];
      if (y.some((bytes) => bytes >= 0)) traces.push(line(name, this.x(this.readings), Array.from(y, (bytes) => (bytes < 0 ? null : bytes)), colour, { line: { dash } }));
    }
    const ends = settings.axis === "time" ? [0, this.trace.duration_ns / this.unit] : [0, Math.max(1, this.trace.events - 1)];
    for (const [bytes, name, dash] of [[this.view.capacity_bytes, "the card's capacity", "longdash"], [this.view.memory_limit_bytes, "the program's limit", "longdashdot"]])
      if (bytes) traces.push(line(name, ends, [bytes, bytes], "capacity", { line: { dash } }));
    return traces;
  }

  rows() {
    const rows = [];
    const add = (label, group, symbol, colour, told) => {
      if (group.event.length) rows.push({
        type: "scatter", mode: "markers", x: this.x(group), y: Array(group.event.length).fill(label), name: label, yaxis: "y2", 
        hoverinfo: "none", cliponaxis: false, meta: { told }, marker: { symbol, size: 8, color: GM.colour(colour), line: { width: 1, color: GM.colour(colour) } },
      });
    };
    const group = (list) => ({ event: list.map((one) => one.event), time_ns: list.map((one) => one.time_ns) });
    const steps = this.trace.marks.filter((mark) => mark.kind === "step");
    const marks = this.trace.marks.filter((mark) => mark.kind === "mark");
    add("steps", group(steps), "line-ns-open", "quiet", (at) => `end of step ${steps[at].step}`);
    add("marks", group(marks), "diamond", "text", (at) => `mark: ${marks[at].name}`);
    if (this.driver) {
      const { kind, bytes, site, event, time_ns } = this.driver;
      const symbols = kind.map((name) => (name.endsWith("alloc") || name.endsWith("_map") ? "triangle-up" : "triangle-down-open"));
      const word = { segment_alloc: "segment obtained", segment_free: "segment given back", segment_map: "segment grew", segment_unmap: "segment shrank" };
      add("segments", { event, time_ns }, symbols, "reserved", (at) => `${word[kind[at]]}: ${GM.bytes(bytes[at])}, ${GM.siteText(site[at])}`);
    }
    const ooms = this.view.ooms;
    add("oom", group(ooms), "x", "error", (at) => `out of memory: asked ${GM.bytes(ooms[at].requested_bytes)} with ${GM.bytes(ooms[at].free_bytes)} free on the card, ${GM.siteText(ooms[at].site)}`);
    return rows;
  }

  /* ---- axes ---- */

  layout(rows) {
    const quiet = GM.colour("quiet");
    const grid = GM.colour("line");
    const floor = rows.length ? (GM.isPrinting() ? 0.09 : 0.05) * rows.length + 0.04 : 0;
    const marks = this.trace.marks.filter((mark) => mark.kind === "mark");
    const axis = settings.axis === "time" ? { ticksuffix: ` ${this.unitName}` } : { tickformat: ",d", tickprefix: "event ", showtickprefix: "first" };
    return {
      ...GM.plotlySize(this.plot, (GM.isPrinting() ? HEIGHT_PRINTED : HEIGHT) + 22 * rows.length), margin: { l: this.plot.clientWidth < 700 ? 64 : 78, r: 12, t: 26, b: 24 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: GM.colour("text") },
      hovermode: "x", dragmode: "zoom", showlegend: false,
      xaxis: { ...axis, gridcolor: grid, zerolinecolor: grid, tickfont: { color: quiet }, anchor: rows.length ? "y2" : "y", range: this.range ?? this.everything(),
        showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: quiet,
        rangeslider: { visible: !GM.isPrinting(), range: this.everything(), yaxis2: { rangemode: "fixed", range: [-9, -8] }, thickness: 0.09, bgcolor: GM.colour("raised"), bordercolor: grid, borderwidth: 1 } },
      yaxis: { ...this.heightAxis(), domain: [floor, 1], gridcolor: grid, zerolinecolor: grid, tickfont: { color: quiet }, fixedrange: true },
      yaxis2: { domain: [0, Math.max(0.01, floor - 0.04)], type: "category", fixedrange: true, gridcolor: grid, tickfont: { color: quiet }, categoryorder: "array", categoryarray: rows.map((row) => row.name).reverse(), tickmode: "array", tickvals: rows.map((row) => row.name), range: [-0.5, rows.length - 0.5] },
      shapes: marks.length > MARKS_LINED ? [] : marks.map((mark) => ({ type: "line", xref: "x", yref: "paper", x0: this.at(mark), x1: this.at(mark), y0: floor, y1: 1, line: { color: quiet, width: 1, dash: "dot" } })),
      annotations: this.notes(),
    };
  }

  at(mark) {
    return settings.axis === "time" ? mark.time_ns / this.unit : mark.event;
  }

  /* A line where the moment is that is told below the picture; not one of plotly's, which draws all anew for it. */
  showTold() {
    const { xaxis, yaxis } = this.plot._fullLayout;
    const x = xaxis.l2p(this.at(momentOf(this.curves ?? this.readings, settings.point)));
    this.line.hidden = x < 0 || x > xaxis._length;
    this.line.style.cssText = `left:${xaxis._offset + x}px;top:${yaxis._offset}px;height:${yaxis._length}px`;
  }

  /* The peak, and the names of the marks beside their lines, as far as they have room. */
  notes() {
    const { peak } = this.view;
    const [from, to] = this.range ?? this.everything();
    const along = (this.at(peak) - from) / (to - from);
    const told = this.curves && peak.bytes ? [{ xanchor: along > 0.85 ? "right" : along < 0.15 ? "left" : "center", x: this.at(peak), y: peak.bytes, xref: "x", yref: "y", text: `peak ${GM.bytes(peak.bytes)}`, showarrow: true, arrowhead: 2, arrowsize: 0.8, arrowwidth: 1.2, arrowcolor: GM.colour("text"),
      ax: 0, ay: -15, font: { size: 11, color: GM.colour("text") }, bgcolor: withAlpha(GM.colour("background"), 0.75), borderpad: 0 }] : [];
    return [...this.markNames(this.trace.marks.filter((mark) => mark.kind === "mark")), ...told];
  }

  markNames(marks) {
    const [from, to] = this.range ?? this.everything();
    const apart = ((to - from) * NAME_WIDTH) / Math.max(1, this.plot.clientWidth - 90);
    let last = -Infinity;
    const named = marks.filter((mark) => {
      const fits = this.at(mark) >= from && this.at(mark) <= to - apart && this.at(mark) - last >= apart;
      if (fits) last = this.at(mark);
      return fits && marks.length <= MARKS_LINED;
    });
    return named.map((mark) => ({ x: this.at(mark), y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "top", textangle: -90, showarrow: false,
      text: GM.plotlyText(GM.short(mark.name, 28)), font: { size: 11, color: GM.colour("quiet") }, bgcolor: withAlpha(GM.colour("background"), 0.75) }));
  }

  everything() {
    return settings.axis === "time" ? [0, Math.max(1, this.trace.duration_ns) / this.unit] : [-1, Math.max(1, this.trace.events - 1)];
  }

  /* What is shown at first: all, less a long quiet time before the curves move; null for all. */
  beginning() {
    if (settings.axis !== "time" || !this.view.beginning_ns) return null;
    return [this.view.beginning_ns / this.unit, this.trace.duration_ns / this.unit];
  }

  /* The height of the curves in the part of the trace that is shown, in round binary units; bounds far above are told below the figure. */
  heightAxis() {
    const [from, to] = this.range ?? [-Infinity, Infinity];
    const tops = this.drawn.filter((one) => !one.stackgroup && one.x.length).map((one) => ({ name: one.name, top: highest(one, from, to) }));
    const inside = tops.filter((one) => [this.word, "active", "reserved", "marked site"].includes(one.name));
    const stacked = this.heldAtShares && settings.mode === "sites" ? Math.max(0, ...this.heldAtShares) : 0;
    let top = Math.max(1, stacked, ...inside.map((one) => one.top));
    if (!inside.length) top = Math.max(top, ...tops.filter((one) => one.name.startsWith("NVML")).map((one) => one.top));
    const near = settings.whole ? Infinity : 1.6 * top;
    top = Math.max(top, ...tops.map((one) => one.top).filter((bytes) => bytes <= near));
    const above = tops.filter((one) => one.top > top).map((one) => `${one.name}, ${GM.bytes(one.top)}`);
    const few = this.curves && this.curves.event.length - 1 >= this.curves.device_events;
    const drawn = !this.curves ? "" : few ? "Every event is drawn." : `${GM.count(this.curves.event.length)} of ${GM.counted(this.curves.device_events, "event")} are drawn; every peak is among them.`;
    const before = this.range && this.range[0] > 0 && this.range[0] === this.beginning()?.[0] ? ` The quiet first ${GM.duration(this.view.beginning_ns)} are left out${GM.isPrinting() ? "" : ": pull the slider below the picture to see them"}.` : "";
    const driver = this.view.driver_event_count > (this.driver?.event.length ?? 0) ? ` The ${GM.count(this.driver.event.length)} largest of ${GM.counted(this.view.driver_event_count, "segment event")} are shown.` : "";
    GM.say(this.note, `${drawn}${before}${driver}${above.length ? ` Above the picture: ${above.join("; ")}.` : ""}`);
    return { range: [0, 1.04 * top], ...byteTicks(top) };
  }

  /* ---- what is told of a moment ---- */

  peakPoint() {
    if (!this.curves) return 0;
    return this.curves.held_bytes.reduce((best, bytes, at, all) => (bytes > all[best] ? at : best), 0);
  }

  hover(event) {
    const group = this.curves ?? this.readings;
    const x = event.xvals ? event.xvals[0] : event.points[0].x;
    const key = settings.axis === "time" ? group.time_ns : group.event;
    const at = lastNotAfter(key, settings.axis === "time" ? x * this.unit : x);
    const told = event.points.filter((point) => point.data.meta?.told).map((point) => point.data.meta.told(point.pointNumber));
    this.tell(Math.max(0, at), told);
  }

  tell(at, told) {
    settings.point = at;
    this.slider.value = String(at);
    this.showTold();
    const group = this.curves ?? this.readings;
    if (!group.event.length) return;
    const event = group.event[at];
    const reading = nearest(this.readings.time_ns, group.time_ns[at]);
    const figures = [];
    if (this.curves) {
      figures.push(`${this.word} ${GM.bytes(this.curves.held_bytes[at])}`, `reserved ${GM.bytes(this.curves.reserved_bytes[at])}`);
      if (this.curves.pending_bytes[at]) figures.push(`pending ${GM.bytes(this.curves.pending_bytes[at])}`);
      if (this.view.capacity_bytes) figures.push(`${GM.share(this.curves.reserved_bytes[at], this.view.capacity_bytes)} of the card reserved`);
    }
    if (reading >= 0) figures.push(...this.readingTold(reading, group.time_ns[at]));
    const when = event < 0 ? "Before the first event" : `${GM.duration(group.time_ns[at])}, event ${GM.count(event)}`;
    this.readout.replaceChildren(
      GM.make("p", {}, GM.make("b", { text: when }), ...GM.sentence(` · ${figures.join(" · ")}`)),
      GM.make("p", {}, ...GM.sentence(this.holders(event))),
      ...told.slice(0, 4).map((text) => GM.make("p", { text })));
  }

  /* What NVML read, and how far from the moment: it may have been before or after a segment that the figures count. */
  readingTold(reading, time_ns) {
    const { process_bytes: process, used_bytes: used } = this.readings;
    const apart = this.readings.time_ns[reading] - time_ns;
    const when = apart === 0 ? "" : ` (read ${GM.duration(Math.abs(apart))} ${apart < 0 ? "before" : "after"})`;
    const told = [];
    if (process[reading] >= 0) told.push(`NVML: this process ${GM.bytes(process[reading])}`);
    if (used[reading] >= 0) told.push(`${told.length ? "" : "NVML: "}whole card ${GM.bytes(used[reading])}`);
    return told.length ? [told.join(", ") + when] : [];
  }

  /* Who held the bytes: at the nearest event at which sites were counted. */
  holders(event) {
    if (!this.shares || !this.shares.event.length) return "";
    const row = nearest(this.shares.event, event);
    const held = this.heldAtShares[row];
    const list = this.shares.sites.map((site, at) => [this.shares.held_bytes[at][row], site]).filter(([bytes]) => bytes > 0).sort((one, other) => other[0] - one[0]);
    if (!list.length) return "Held by nobody.";
    const where = this.shares.event[row] === event ? "" : ` at event ${GM.count(this.shares.event[row])}`;
    return `Held${where} by ${list.slice(0, HOLDERS_TOLD).map(([bytes, site]) => `${GM.page.sites[site] === null ? "code without a Python stack" : GM.siteText(site)} ${GM.bytes(bytes)} (${GM.share(bytes, held)})`).join(", ")}`;
  }
}
