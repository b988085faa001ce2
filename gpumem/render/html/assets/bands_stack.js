"use strict";
/* Bands stacked into columns of pixels: GM.BandsModel says which bytes a column shows, GM.BandsPainter paints them. */

/* ---- the layout: which bytes each column shows ---- */

class Model {
  constructor(found) {
    const column = (name) => GM.column(found.bands[name]);
    Object.assign(this, { found, stacks: GM.view().stacks, count: found.bands.held_bytes.column[2] });
    for (const name of ["held_bytes", "requested_bytes", "start_event", "start_time_ns", "end_event", "end_time_ns", "stack"]) this[name] = column(name);
    for (const name of ["event", "time_ns", "held_bytes"]) this[`rest_${name}`] = GM.column(found.rest[name]);
    this.totals = totals(this);
    this.highest = this.totals.reduce((most, bytes) => Math.max(most, bytes), 1);
  }

  /* Of each column the point of the rest's curve with most bytes, the one before the column included. */
  moments(columns, from, to, axis) {
    const at = axis === "time" ? this.rest_time_ns : this.rest_event;
    const chosen = new Int32Array(columns);
    let next = 0;
    let carried = 0;
    while (next < at.length && at[next] <= from) next++;
    carried = Math.max(0, next - 1);
    for (let c = 0; c < columns; c++) {
      const end = from + ((c + 1) * (to - from)) / columns;
      let best = carried;
      for (; next < at.length && at[next] < end; next++) if (this.totals[next] > this.totals[best]) best = next;
      chosen[c] = best;
      carried = Math.max(0, next - 1);
    }
    return chosen;
  }

  /* Calls see(band, bytes below it) for the bands held at a point, lowest first; stops when it returns true. */
  held(point, see) {
    const event = this.rest_event[point];
    let below = 0;
    for (let b = 0; b < this.count && this.start_event[b] <= event; b++) {
      if (this.end_event[b] <= event) continue;
      if (see(b, below)) return b;
      below += this.held_bytes[b];
    }
    return -1;
  }
}

function totals(model) {
  const ends = [...model.end_event.keys()].sort((one, other) => model.end_event[one] - model.end_event[other]);
  const found = new Float64Array(model.rest_event.length);
  let [begun, ended, banded] = [0, 0, 0];
  for (let point = 0; point < found.length; point++) {
    const event = model.rest_event[point];
    for (; begun < model.count && model.start_event[begun] <= event; begun++) banded += model.held_bytes[begun];
    for (; ended < model.count && model.end_event[ends[ended]] <= event; ended++) banded -= model.held_bytes[ends[ended]];
    found[point] = banded + model.rest_held_bytes[point];
  }
  return found;
}

/* ---- painting ---- */

const packed = ([red, green, blue]) => (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;

/* Of each band the longest stretch of columns in which it lies flat, as [from, to, top, bottom]: room for a label. */
class Flats {
  constructor(count) {
    this.open = new Int32Array(4 * count).fill(-1);
    this.longest = new Int32Array(4 * count);
  }

  see(band, top, bottom, from, to) {
    const at = 4 * band;
    const { open, longest } = this;
    if (open[at + 1] !== from || open[at + 2] !== top || open[at + 3] !== bottom) open.set([from, to, top, bottom], at);
    else open[at + 1] = to;
    if (open[at + 1] - open[at] > longest[at + 1] - longest[at]) longest.set(open.subarray(at, at + 4), at);
  }
}

class Painter {
  constructor(model, palette, marked, ratio) {
    const { background, text, idle } = palette;
    this.model = model;
    this.ground = packed(background);
    this.rest = packed(marked === null ? idle : GM.mix(idle, background, 0.6));
    this.line = packed(text);
    this.period = Math.round(7 * ratio);
    this.edged = Math.round(6 * ratio); // thinner bands of the marked site have stripes alone: edges would hide them
    this.stripe = Math.max(1, Math.round(1.4 * ratio));
    this.rgb = [];
    this.colours = new Uint32Array(model.count);
    this.edges = new Uint32Array(model.count);
    this.marked = new Uint8Array(model.count);
    for (let b = 0; b < model.count; b++) {
      const site = model.stacks[model.stack[b]].site;
      const colour = GM.mix(palette.site(site), background, marked !== null && site !== marked ? 0.75 : 0.1);
      this.rgb.push(colour);
      this.colours[b] = packed(colour);
      this.edges[b] = packed(GM.mix(colour, background, 0.55));
      this.marked[b] = marked !== null && site === marked ? 1 : 0;
    }
  }

  /* Pixels of the columns from `low` to `high` bytes; returns where bands lie flat. */
  paint(image, moments, low, high) {
    const { width, height } = image;
    const { model } = this;
    const pixels = new Uint32Array(image.data.buffer);
    const column = { rows: new Uint32Array(height), striped: new Uint8Array(height), flats: new Flats(model.count), low, scale: height / (high - low) };
    const held = new Int32Array(model.count);
    let [heldCount, begun] = [0, 0];
    for (let from = 0, to = 0; from < width; from = to) {
      for (to = from + 1; to < width && moments[to] === moments[from]; ) to++;
      const event = model.rest_event[moments[from]];
      for (; begun < model.count && model.start_event[begun] <= event; begun++) held[heldCount++] = begun;
      let kept = 0;
      for (let at = 0; at < heldCount; at++) if (model.end_event[held[at]] > event) held[kept++] = held[at];
      heldCount = kept;
      this.stack(column, held, heldCount, moments[from], from, to);
      this.copy(pixels, width, column, from, to);
    }
    return column.flats;
  }

  /* One column: bands from the bottom up, the rest on top. */
  stack(column, held, heldCount, moment, from, to) {
    const { rows, striped, flats, low, scale } = column;
    const { held_bytes, totals } = this.model;
    const height = rows.length;
    const rowOf = (bytes) => Math.max(0, Math.min(height, Math.round(height - (bytes - low) * scale)));
    striped.fill(0);
    let below = 0;
    let bottom = height;
    for (let at = 0; at < heldCount; at++) {
      const b = held[at];
      below += held_bytes[b];
      const top = rowOf(below);
      if (top >= bottom) continue;
      rows.fill(this.colours[b], top, bottom);
      if (this.marked[b]) striped.fill(1, top, bottom);
      if (this.marked[b] && bottom - top >= this.edged) striped[top] = 2;
      else if (bottom - top > 2) rows[top] = this.edges[b];
      if (bottom - top >= 12) flats.see(b, top, bottom, from, to);
      bottom = top;
    }
    const top = rowOf(totals[moment]);
    if (top < bottom) rows.fill(this.rest, top, bottom);
    rows.fill(this.ground, 0, Math.min(top, bottom));
  }

  /* The column repeated from `from` to `to`; rows of the marked site are striped and edged. */
  copy(pixels, width, { rows, striped }, from, to) {
    for (let y = 0, at = 0; y < rows.length; y++, at += width) {
      pixels.fill(striped[y] === 2 ? this.line : rows[y], at + from, at + to);
      if (striped[y] === 1) for (let x = from; x < to; x++) if ((x + y) % this.period < this.stripe) pixels[at + x] = this.line;
    }
  }
}

GM.BandsModel = Model;
GM.BandsPainter = Painter;
