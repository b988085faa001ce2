"use strict";
/* What is said of a heap beside its map: GM.heapWords. Must not know pixels. */

const { PENDING, MIXED } = GM.heap;

function pinButton(pin) {
  const { site } = GM.view().stacks[pin.stack];
  const text = `${GM.siteText(site)}, ${GM.bytes(pin.held_bytes)} in ${GM.counted(pin.block_count, "block")}`;
  return GM.make("button", { type: "button", class: "pin", title: GM.siteTitle(site), onclick: () => GM.toggle(site) }, GM.siteDot(site), text);
}

/* Where a program ran out, that; else its peak. */
function startingMoment(moments) {
  for (const name of ["oom", "peak"]) {
    const number = moments.findIndex((one) => one.names.includes(name));
    if (number >= 0) return number;
  }
  return moments.length - 1;
}

/* The ledger of a moment: NVML's figure, part by part, as [name, note, bytes, share, level, evidence]. */
function factRows({ ledger, time_ns }) {
  const whole = ledger.process_bytes ?? ledger.rows[0].bytes;
  const rows = [];
  if (ledger.process_bytes !== null) {
    const apart = ledger.reading_time_ns - time_ns;
    const when = apart === 0 ? "read at this moment" : `read ${GM.duration(Math.abs(apart))} ${apart < 0 ? "before" : "after"}`;
    const card = ledger.total_bytes;
    if (ledger.used_bytes !== null) rows.push(["NVML: used on the card", card ? `of ${GM.bytes(card)}` : "", ledger.used_bytes, card ? GM.share(ledger.used_bytes, card) : "", 0]);
    rows.push(["NVML: this process", when, ledger.process_bytes, "", 0]);
  }
  for (const one of ledger.rows) if (one.bytes || one.depth === 0) rows.push([one.label, "", one.bytes, GM.share(one.bytes, whole), one.depth + 1, one.evidence]);
  return rows;
}

function noteOf(moment, heap) {
  const sentences = [];
  if (heap.basis !== "allocated") sentences.push("Block sizes are not known: blocks are drawn as large as their requests, and what lies between is not told apart.");
  if (moment.cells.count < moment.cell_count) sentences.push(`${GM.count(moment.cell_count)} blocks and holes are drawn as ${GM.count(moment.cells.count)}: small neighbours are merged.`);
  if (moment.left_out.segment_count) sentences.push(`${GM.counted(moment.left_out.segment_count, "smaller segment")} of together ${GM.bytes(moment.left_out.reserved_bytes)} (${GM.bytes(moment.left_out.held_bytes)} in use) ${moment.left_out.segment_count === 1 ? "is" : "are"} not drawn.`);
  if (moment.unplaced_count) sentences.push(`${GM.counted(moment.unplaced_count, "block")} of ${GM.bytes(moment.unplaced_bytes)} lie in segments from before the recording and are not drawn.`);
  return sentences.join(" ");
}

function segmentText(moment, row) {
  const kind = `${moment.expandable[row] ? "an expandable segment" : "a segment"}${moment.private[row] ? " of a private pool" : ""}`;
  return `in ${kind} of ${GM.bytes(moment.segments[row])} at 0x${moment.addresses[row].toString(16)}`;
}

function stateLegend(moment, by, heap) {
  const present = new Set(moment.cells.state);
  const rows = by === "state" ? [["allocated", "allocated"]] : [];
  if (present.has(PENDING)) rows.push(["pending", "pending"]);
  if (heap.basis === "allocated") rows.push(["gap", "gap"], ["releasable", "releasable"]);
  if (present.has(MIXED)) rows.push(["mixed", "small blocks and holes"]);
  if (moment.cells.is_pinning.some((one) => one)) rows.push(["pinning", "pins a gap"]);
  return rows;
}

GM.heapWords = { pinButton, startingMoment, factRows, noteOf, segmentText, stateLegend };
