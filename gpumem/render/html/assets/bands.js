"use strict";
/* The largest allocations as bands in time, stacked in the order they were made, and the others as one area on top.

   A column of pixels shows the moment within it at which most bytes were held, so no peak is lost at any zoom. Bands are
   laid out for the columns shown, pixel by pixel: what it costs depends on the screen, not on how many there are. */

const FRAME = { left: 74, right: 14, top: 18, bottom: 30 };
const LABELS_MAX = 40;
const AROUND_PEAK = 1500;

/* ---- axes ---- */

/* Round numbers between two: bytes in powers of two, others in 1, 2, 5. */
function ticks(from, to, count, isBytes) {
  const rough = (to - from) / count;
  let step = 2 ** Math.ceil(Math.log2(rough));
  if (!isBytes) {
    const ten = 10 ** Math.floor(Math.log10(rough));
    step = ten * [1, 2, 5, 10].find((one) => one * ten >= rough);
  }
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { at: found, step };
}

/* A time on an axis whose ticks are `step` apart, with the digits that tell them apart. */
function timeText(ns, step) {
  const digits = Math.max(0, -Math.floor(Math.log10(step / 1e9)));
  return `${(ns / 1e9).toFixed(Math.min(9, digits))} s`;
}

function bytesText(bytes, step) {
  const [unit, factor] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]].find(([, one]) => Math.max(bytes, step) >= one) ?? ["B", 1];
  const digits = Math.min(3, Math.max(0, Math.ceil(-Math.log2(step / factor))));
  return bytes === 0 ? "0" : `${(bytes / factor).toFixed(digits)} ${unit}`;
}

/* ---- the figure ---- */

class BandsFigure {
  constructor(element, found) {
    this.model = new GM.BandsModel(found);
    this.found = found;
    this.axis = GM.address.choice("bands-along", ["time"]) ?? "event";
    this.marked = null;
    this.peakX = null; // where the peak is told, in pixels; null while it is out of sight
    this.surface = null;
    const switchAxis = GM.choice("bands-axis", "Axis", [["time", "Time"], ["event", "Events"]], this.axis, (axis) => {
      this.axis = axis;
      GM.address.set("bands-along", axis === "time" ? axis : null);
      this.surface.reset();
    });
    const controls = GM.make("div", { class: "controls" }, switchAxis);
    element.append(GM.make("p", { text: shareSentence(found) }), controls);
    this.surface = new GM.Surface(element, {
      name: "bands",
      label: "Largest allocations over time, stacked; the table below tells the same",
      height: window.innerWidth < 640 ? 300 : 420,
      frame: () => FRAME,
      draw: (pen, box) => this.draw(pen, box),
      tip: (x, y) => this.tip(x, y),
      pick: (x, y) => this.pick(x, y),
      buttons: [["Peak", "Show what is around the peak", () => this.showPeak()]],
    });
    controls.append(...this.surface.controls());
    this.legend = GM.siteLegend(this.sites(), "At the peak:");
    this.words = new GM.BlockWords();
    element.append(this.words.element, this.legend, this.table());
  }

  /* The sites that hold most in bands at the peak, then those of the largest bands. */
  sites() {
    const { model, found } = this;
    const sums = new Map();
    for (let b = 0; b < model.count; b++) {
      const { site } = model.stacks[model.stack[b]];
      const atPeak = model.start_event[b] <= found.peak.event && model.end_event[b] > found.peak.event;
      sums.set(site, (sums.get(site) ?? 0) + (atPeak ? model.held_bytes[b] : 0));
    }
    const most = [...sums].sort((one, other) => other[1] - one[1] || one[0] - other[0]).slice(0, 12);
    return most.map(([site, bytes]) => [site, GM.bytes(bytes)]);
  }

  /* Some events around the peak. */
  showPeak() {
    const { rest_event: events, rest_time_ns: times } = this.model;
    const pointAt = (event) => Math.max(0, events.findIndex((one) => one >= event));
    const [first, last] = [this.found.peak.event - AROUND_PEAK, this.found.peak.event + AROUND_PEAK];
    const ends = this.axis === "event" ? [first, last] : [times[pointAt(first)], last < this.found.event_count ? times[pointAt(last)] : this.found.duration_ns];
    const whole = Math.max(1, this.axis === "event" ? this.found.event_count : this.found.duration_ns);
    const [from, to] = ends.map((end) => Math.min(1, Math.max(0, end / whole)));
    this.surface.show({ ...this.surface.view, x0: from, x1: Math.max(to, from + 1e-6) });
  }

  range() {
    const end = this.axis === "time" ? this.found.duration_ns : this.found.event_count;
    const { x0, x1, y0, y1 } = this.surface?.view ?? { x0: 0, x1: 1, y0: 0, y1: 1 };
    const most = this.model.highest * 1.04;
    return { from: x0 * Math.max(1, end), to: x1 * Math.max(1, end), low: (1 - y1) * most, high: (1 - y0) * most };
  }

  draw(pen, { width, height, ratio }) {
    const plot = { width: width - FRAME.left - FRAME.right, height: height - FRAME.top - FRAME.bottom };
    const [wide, high] = [Math.round(plot.width * ratio), Math.round(plot.height * ratio)];
    if (wide < 1 || high < 1) return;
    const palette = GM.palette();
    const range = this.range();
    this.columns = { moments: this.model.moments(wide, range.from, range.to, this.axis), ratio, plot, range };
    const painter = new GM.BandsPainter(this.model, palette, this.marked, ratio);
    const image = pen.createImageData(wide, high);
    const flats = painter.paint(image, this.columns.moments, range.low, range.high);
    pen.putImageData(image, Math.round(FRAME.left * ratio), Math.round(FRAME.top * ratio));
    this.labels(pen, flats, painter, ratio);
    this.axes(pen, plot, range, palette);
  }

  labels(pen, flats, painter, ratio) {
    const { longest } = flats;
    const long = [];
    for (let b = 0; b < this.model.count; b++) if (longest[4 * b + 1] - longest[4 * b] >= 90 * ratio) long.push(b);
    const area = (b) => (longest[4 * b + 1] - longest[4 * b]) * (longest[4 * b + 3] - longest[4 * b + 2]);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    for (const b of long.sort((one, other) => area(other) - area(one)).slice(0, LABELS_MAX)) {
      const [from, to, top, bottom] = longest.subarray(4 * b, 4 * b + 4);
      const text = GM.fitted(pen, `${GM.bytes(this.model.held_bytes[b])}  ${GM.siteName(this.stackOf(b).site)}`, (to - from) / ratio - 12);
      const [x, y] = [FRAME.left + from / ratio + 6, FRAME.top + (top + bottom) / 2 / ratio];
      if (text && painter.marked[b]) { // no stripes behind it
        pen.fillStyle = GM.css(painter.rgb[b]);
        pen.fillRect(x - 3, y - 6, pen.measureText(text).width + 6, 12);
      }
      pen.fillStyle = GM.ink(painter.rgb[b]);
      if (text) pen.fillText(text, x, y);
    }
  }

  axes(pen, plot, range, palette) {
    const { from, to, low, high } = range;
    const xOf = (value) => FRAME.left + ((value - from) / (to - from)) * plot.width;
    const yOf = (bytes) => FRAME.top + (1 - (bytes - low) / (high - low)) * plot.height;
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = GM.css(palette.quiet);
    pen.fillStyle = GM.css(palette.quiet);
    const line = (x0, y0, x1, y1) => {
      pen.beginPath();
      pen.moveTo(x0, y0);
      pen.lineTo(x1, y1);
      pen.stroke();
    };
    const [bottom, right] = [FRAME.top + plot.height, FRAME.left + plot.width];
    line(FRAME.left, bottom, right, bottom);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const bytes = ticks(low, high, 5, true);
    for (const at of bytes.at) {
      line(FRAME.left - 4, yOf(at), FRAME.left, yOf(at));
      pen.fillText(bytesText(at, bytes.step), FRAME.left - 7, yOf(at));
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const along = ticks(from, to, Math.max(2, plot.width / 130), false);
    for (const at of along.at) {
      line(xOf(at), bottom, xOf(at), bottom + 4);
      if (this.axis === "event" && at !== Math.round(at)) continue;
      const text = this.axis === "time" ? timeText(at, along.step) : GM.count(at);
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(right - half + FRAME.right, xOf(at)), bottom + 7);
    }
    pen.textAlign = "right";
    if (this.axis === "event") pen.fillText("event", FRAME.left - 7, bottom + 7);
    this.moments(pen, xOf, palette, right, bottom, line);
  }

  /* The program's marks, and the peak, as lines. */
  moments(pen, xOf, palette, right, bottom, line) {
    const where = (one) => xOf(this.axis === "time" ? one.time_ns : one.event + 1);
    const shown = (one) => where(one) >= FRAME.left && where(one) <= right;
    const far = (list) => list.filter((one, at) => !at || where(one) - where(list[at - 1]) >= 12);
    const kinds = ["mark", "step"].map((kind) => GM.trace().marks.filter((mark) => mark.kind === kind && shown(mark)));
    const lines = kinds.filter((list) => list.length <= 60 && far(list).length === list.length).flat();
    pen.setLineDash([2, 3]);
    pen.globalAlpha = 0.55;
    pen.strokeStyle = GM.css(palette.text);
    for (const one of lines) line(where(one), FRAME.top, where(one), bottom);
    pen.setLineDash([]);
    pen.globalAlpha = 1;
    pen.fillStyle = GM.css(palette.text);
    pen.textBaseline = "bottom";
    /* Along events, what is held after one is drawn from its number to the next: the peak is told in the middle of that. */
    const { peak } = this.found;
    const peakX = xOf(this.axis === "time" ? peak.time_ns : peak.event + 0.5);
    this.peakX = peakX >= FRAME.left && peakX <= right ? peakX : null;
    if (this.peakX !== null) {
      const text = `peak ${GM.bytes(this.found.peak_bytes)}`;
      const half = pen.measureText(text).width / 2;
      pen.textAlign = "center";
      pen.fillText(text, Math.max(FRAME.left + half, Math.min(right - half, peakX)), FRAME.top - 4);
      pen.beginPath();
      pen.moveTo(peakX - 4, FRAME.top - 4);
      pen.lineTo(peakX + 4, FRAME.top - 4);
      pen.lineTo(peakX, FRAME.top + 2);
      pen.fill();
    }
  }

  stackOf(band) {
    return this.model.stacks[this.model.stack[band]];
  }

  /* What lies at a point: {band}, {rest} or nothing. */
  at(x, y) {
    const { moments, ratio, plot, range } = this.columns ?? {};
    const [px, py] = [x - FRAME.left, y - FRAME.top];
    if (!plot || px < 0 || py < 0 || px >= plot.width || py > plot.height) return null;
    const moment = moments[Math.min(moments.length - 1, Math.floor(px * ratio))];
    const bytes = range.high - (py / plot.height) * (range.high - range.low);
    const band = this.model.held(moment, (b, below) => bytes >= below && bytes < below + this.model.held_bytes[b]);
    if (band >= 0) return { moment, band };
    return bytes < this.model.totals[moment] ? { moment, rest: true } : null;
  }

  tip(x, y) {
    const hit = this.at(x, y);
    if (!hit) return null;
    const { model } = this;
    const now = `${GM.duration(model.rest_time_ns[hit.moment])}: ${GM.bytes(model.totals[hit.moment])} ${this.found.basis} in all`;
    if (hit.rest) return [GM.make("b", { text: `${GM.bytes(model.rest_held_bytes[hit.moment])} in allocations without a band` }), now];
    const lines = [GM.make("b", { text: bytesSentence(model, hit.band) }), lifeText(model, hit.band, this.found), ...GM.stackLines(this.stackOf(hit.band)), now];
    return Object.assign(lines, { site: this.stackOf(hit.band).site });
  }

  pick(x, y) {
    const hit = this.at(x, y);
    if (hit?.band !== undefined) this.tell(hit.band);
    else GM.select(null);
  }

  /* Tells a band in words and marks its site; the same band again takes both back. */
  tell(band) {
    const stack = this.stackOf(band);
    const isTold = this.words.toggle(band, bytesSentence(this.model, band), [lifeText(this.model, band, this.found)], stack);
    GM.select(isTold ? stack.site : null);
  }

  /* The largest bands in words. */
  table() {
    const { model } = this;
    const largest = [...Array(model.count).keys()].sort((one, other) => model.held_bytes[other] - model.held_bytes[one] || one - other).slice(0, 50);
    const rows = largest.map((b) => {
      const { site } = this.stackOf(b);
      const row = GM.make("tr", { "data-mark": String(site), "aria-selected": "false" },
        GM.make("td", { class: "number", text: GM.bytes(model.held_bytes[b]) }),
        GM.make("td", { text: GM.siteText(site) }),
        GM.make("td", { text: lifeText(model, b, this.found) }));
      return GM.pickable(row, () => {
        this.tell(b);
        this.words.seek();
      });
    });
    const head = GM.make("tr", {}, GM.make("th", { class: "number", text: "Bytes" }), GM.make("th", { text: "Site" }), GM.make("th", { text: "Held" }));
    const table = GM.make("table", {}, GM.make("thead", {}, head), GM.make("tbody", {}, ...rows));
    return GM.make("details", { class: "as-table" }, GM.make("summary", { text: `The ${rows.length} largest as a table` }), GM.make("div", { class: "scroll" }, GM.fold(table)));
  }

  select(site) {
    this.marked = site;
    this.words.keepTo(site);
    GM.pressLegend(this.legend, site);
    this.surface.redraw();
  }
}

function shareSentence(found) {
  const count = found.bands.held_bytes.column[2];
  const share = `${GM.bytes(found.banded_bytes_at_peak)} of the ${GM.bytes(found.peak_bytes)} at the peak (${GM.share(found.banded_bytes_at_peak, found.peak_bytes)})`;
  const rest = "the grey area on top is the rest, summed";
  if (count === found.allocation_count) return `Each of the ${GM.counted(count, "allocation")} is a band: as high as its bytes, from when it was made to when it was freed.`;
  return `${GM.count(count)} of ${GM.counted(found.allocation_count, "allocation")} are bands: the largest at the peak, then the largest of all. They hold ${share}; ${rest}.`;
}

function bytesSentence(model, band) {
  const [held, requested] = [model.held_bytes[band], model.requested_bytes[band]];
  return held === requested ? GM.bytes(held) : `${GM.bytes(held)} for a request of ${GM.bytes(requested)}`;
}

function lifeText(model, band, found) {
  const start = model.start_event[band] < 0 ? "from before the recording" : `from ${GM.duration(model.start_time_ns[band])} (event ${GM.count(model.start_event[band])})`;
  if (model.end_event[band] >= found.event_count) return `${start}, never freed`;
  const span = GM.duration(model.end_time_ns[band] - model.start_time_ns[band]);
  return `${start} to ${GM.duration(model.end_time_ns[band])} (event ${GM.count(model.end_event[band])}): ${span}`;
}

GM.figures.push({
  id: "bands",
  heavy: true,
  draw(element) {
    const found = GM.view().bands;
    if (!found) {
      element.append(GM.make("p", { class: "quiet", text: "Nothing was allocated on this device." }));
      return {};
    }
    const figure = new BandsFigure(element, found);
    GM.expose("bands", () => ({ axis: figure.axis, highest_bytes: figure.model.highest, peak_x: figure.peakX, view: { ...figure.surface.view }, marked: figure.marked }));
    return { select: (site) => figure.select(site), theme: () => figure.surface.paint(), clear: () => figure.surface.clear() };
  },
});
