"use strict";
/* Small parts of curves.js: lines and their legend, the axis of bytes, places in sorted columns. GM.curveParts. */

/* Event and time of a point of a group of columns. */
function momentOf(group, at) {
  return { event: group.event[at] ?? 0, time_ns: group.time_ns[at] ?? 0 };
}

function withLast(values) {
  return [...values, values.length ? values[values.length - 1] : 0];
}

function line(name, x, y, colour, more = {}) {
  const drawn = GM.colour(colour);
  return { type: "scatter", mode: "lines", x, y, name, hoverinfo: "none", ...more, line: { color: drawn, width: 1.5, shape: "hv", ...more.line } };
}

/* What stands for a line's dashes in the legend, in pixels: drawn, left out, drawn … */
const DASHES = { dot: [2, 2], dash: [5, 3], dashdot: [6, 2, 2, 2], longdash: [9, 3], longdashdot: [9, 2, 2, 2] };

function dashes(lengths, colour) {
  let end = 0;
  const stops = lengths.map((length, part) => `${part % 2 ? "transparent" : colour} ${end}px ${(end += length)}px`);
  return `repeating-linear-gradient(to right, ${stops.join(", ")})`;
}

/* A line as it is drawn, with its name; of a site a button that marks it. */
function legendEntry(trace) {
  const background = trace.stackgroup ? trace.fillcolor : dashes(DASHES[trace.line.dash] ?? [9, 0], trace.line.color);
  const swatch = GM.make("span", { class: "swatch", style: `height:${trace.stackgroup ? ".8rem" : "2px"};background:${background}` });
  const site = trace.meta?.site;
  if (site === undefined || site === null) return GM.make("span", {}, swatch, trace.name);
  return GM.make("button", { type: "button", "data-site": site, "aria-pressed": String(site === GM.state.site), title: GM.siteTitle(site), onclick: () => GM.toggle(site) }, swatch, trace.name);
}

function withAlpha(colour, share) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${red},${green},${blue},${share})`;
}

function alpha(name, share) {
  return withAlpha(GM.colour(name), share);
}

function highest(trace, from, to) {
  let top = 0;
  let before = 0;
  for (let at = 0; at < trace.x.length; at++) {
    const y = trace.y[at] ?? 0;
    if (trace.x[at] < from) before = y;
    else if (trace.x[at] <= to && y > top) top = y;
  }
  return Math.max(top, before);
}

function byteTicks(top) {
  const factor = 1024 ** Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(1, top)) / 10)));
  const unit = ["B", "KiB", "MiB", "GiB", "TiB"][Math.round(Math.log2(factor) / 10)];
  const least = top / factor / 5;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
  const tickvals = [];
  const ticktext = [];
  for (let at = 0; at * step * factor <= 1.04 * top; at++) {
    tickvals.push(at * step * factor);
    ticktext.push(at ? `${Number((at * step).toPrecision(6))} ${unit}` : "0");
  }
  return { tickvals, ticktext };
}

/* The last position whose value is not above `value`; -1 where all are. */
function lastNotAfter(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function nearest(values, value) {
  const before = lastNotAfter(values, value);
  if (before < 0) return values.length ? 0 : -1;
  if (before + 1 >= values.length) return before;
  return value - values[before] <= values[before + 1] - value ? before : before + 1;
}

GM.curveParts = { momentOf, withLast, line, legendEntry, withAlpha, alpha, highest, byteTicks, lastNotAfter, nearest };
