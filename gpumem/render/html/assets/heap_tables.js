"use strict";
/* Tables that tell what the map of a heap shows: GM.heapTables. Must not know pixels. */

const { GAP, MIXED } = GM.heap;
const ROWS_SHOWN = 50;

/* Shows a table, and its line when folded, in a details element that stays open or folded; nothing without rows. */
function fillDetails(details, { summary, table }) {
  details.hidden = !table.tBodies[0].rows.length;
  details.replaceChildren(GM.make("summary", { text: summary }), GM.make("div", { class: "scroll" }, GM.fold(table)));
}

function tableOf(heads, rows) {
  const head = GM.make("tr", {}, ...heads.map(([text, kind]) => GM.make("th", { class: kind, text })));
  return GM.make("table", {}, GM.make("thead", {}, head), GM.make("tbody", {}, ...rows));
}

/* How many rows there are of what: all of them, or the largest. */
function rowsText(shown, all, noun) {
  return `The ${shown < all ? `${shown} largest ${noun}s` : GM.counted(shown, noun)} of this moment as a table`;
}

function segmentTable(moment) {
  const { cells } = moment;
  const sums = Array.from(moment.segments, () => ({ used: 0, blocks: 0 }));
  for (let cell = 0; cell < cells.count; cell++) {
    const sum = sums[cells.segment[cell]];
    sum.blocks += cells.block_count[cell];
    if (cells.state[cell] < GAP) sum.used += cells.cell_bytes[cell];
    if (cells.state[cell] === MIXED) sum.used += cells.allocated_bytes[cell];
  }
  const largest = [...moment.segments.keys()].sort((one, other) => moment.segments[other] - moment.segments[one] || one - other).slice(0, ROWS_SHOWN);
  const rows = largest.map((row) => GM.make("tr", {},
    GM.make("td", { text: `0x${moment.addresses[row].toString(16)}${moment.expandable[row] ? ", expandable" : ""}${moment.private[row] ? ", private pool" : ""}` }),
    GM.make("td", { class: "number", text: GM.bytes(moment.segments[row]) }),
    GM.make("td", { class: "number", text: `${GM.bytes(sums[row].used)} (${GM.share(sums[row].used, moment.segments[row])})` }),
    GM.make("td", { class: "number", text: GM.count(sums[row].blocks) })));
  const heads = [["Segment", ""], ["Bytes", "number"], ["In use", "number"], ["Blocks", "number"]];
  return { summary: rowsText(rows.length, moment.segment_count, "segment"), table: tableOf(heads, rows) };
}

/* The largest blocks, each a row that tells it whole when picked; `told` gives its words: bytes and state, then more. */
function blockTable(moment, siteOf, told, tell) {
  const { cells } = moment;
  const alone = [...Array(cells.count).keys()].filter((cell) => cells.block_count[cell] === 1 && cells.state[cell] !== MIXED);
  const largest = alone.sort((one, other) => cells.cell_bytes[other] - cells.cell_bytes[one] || one - other).slice(0, ROWS_SHOWN);
  const rows = largest.map((cell) => {
    const [title, ...more] = told(cell);
    const row = GM.make("tr", { "data-mark": String(siteOf(cell)), "aria-selected": "false" },
      GM.make("td", { class: "number", text: GM.bytes(cells.cell_bytes[cell]) }),
      GM.make("td", { text: GM.siteText(siteOf(cell)) }),
      GM.make("td", { text: [title.split(", ").slice(1).join(", "), ...more].join("; ") }));
    return GM.pickable(row, () => tell(cell));
  });
  const heads = [["Bytes", "number"], ["Site", ""], ["State", ""]];
  return { summary: rowsText(rows.length, cells.block_count.reduce((sum, one) => sum + one, 0), "block"), table: tableOf(heads, rows) };
}

GM.heapTables = { segmentTable, blockTable, fillDetails };
