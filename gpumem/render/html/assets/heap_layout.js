"use strict";
/* Where the bytes of a heap lie on its map: GM.heap, with the states of cells, the moments decoded, and the layout.

   A segment that is longer than a line goes on in the next; short ones share a line. */

const [, PENDING, GAP, RELEASABLE, MIXED] = ["allocated", "pending", "gap", "releasable", "mixed"].keys();
const BETWEEN = 3;
const SEGMENT_MIN = 2;
const CELL_COLUMNS = ["segment", "offset", "cell_bytes", "state", "block_count", "stack", "event", "is_pinning"];

class Layout {
  /* `segments` are the bytes of each; a line is `width` pixels long, `perByte` of them a byte. */
  constructor(segments, width, perByte) {
    this.width = width;
    this.perByte = perByte;
    this.starts = new Float64Array(segments.length);
    let at = 0;
    let end = 0;
    segments.forEach((bytes, row) => {
      const length = Math.max(SEGMENT_MIN, bytes * perByte);
      const used = at % width;
      if (used && used + length > width) at += width - used;
      this.starts[row] = at;
      end = at + length;
      const border = Math.ceil(end / width - 1e-6) * width;
      at = border - end <= BETWEEN ? border : end + BETWEEN;
    });
    this.lines = Math.max(1, Math.ceil(end / width - 1e-6));
  }

  /* Calls see(line, x, width) for each line that a stretch of a segment lies on. */
  pieces(segment, offset, bytes, see) {
    let from = this.starts[segment] + offset * this.perByte;
    const end = from + bytes * this.perByte;
    do {
      const line = Math.floor(from / this.width + 1e-9);
      const to = Math.min(end, (line + 1) * this.width);
      see(line, from - line * this.width, to - from);
      from = Math.max(to, (line + 1) * this.width);
    } while (from < end - 1e-6);
  }
}

/* The largest scale at which every moment fits into so many lines. */
function fittingScale(moments, width, lines) {
  const lists = moments.map((one) => one.segments);
  const most = Math.max(1, ...moments.map((one) => one.drawn_bytes));
  let [low, high] = [0, (width * lines) / most];
  for (let round = 0; round < 24; round++) {
    const middle = (low + high) / 2;
    if (lists.every((list) => new Layout(list, width, middle).lines <= lines)) low = middle;
    else high = middle;
  }
  return low || high / 64;
}

/* ---- the document's moments, decoded ---- */

function decode(moment) {
  const cells = Object.fromEntries(CELL_COLUMNS.map((name) => [name, GM.column(moment.cells[name])]));
  const segments = GM.column(moment.segments.segment_bytes);
  return {
    ...moment,
    cells: { ...cells, allocated_bytes: moment.cells.allocated_bytes && GM.column(moment.cells.allocated_bytes), count: cells.segment.length },
    segments,
    addresses: GM.column(moment.segments.address),
    expandable: GM.column(moment.segments.is_expandable),
    private: GM.column(moment.segments.is_private),
    drawn_bytes: segments.reduce((sum, bytes) => sum + bytes, 0),
  };
}

GM.heap = { PENDING, GAP, RELEASABLE, MIXED, SEGMENT_MIN, Layout, fittingScale, decode };
