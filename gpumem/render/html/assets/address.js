"use strict";
/* What is shown, kept in the page's address, so that who opens it sees the same.

   #SECTION?view=1&site=3&…   the section to begin with, then what was picked; without it the page begins as it is made
   GM.address.get(name)         a value of it, null for none
   GM.address.set(name, value)  keeps a value; null or "" takes it out
   GM.address.forgetView()      takes out what is true of one view alone
   An address is foreign text: whoever reads a value checks it. */

const OF_A_VIEW = ["from", "to", "level", "bands", "moment", "heap"];
const SETTLED_MS = 400; // browsers refuse an address that changes more than a hundred times in half a minute
let kept = new URLSearchParams();
let section = "";
let waiting = 0;

function read() {
  const [name, ...rest] = location.hash.slice(1).split("?");
  section = name;
  kept = new URLSearchParams(rest.join("?"));
}

function text() {
  const values = kept.toString().replace(/%2C/g, ",");
  return values ? `#${section}?${values}` : section ? `#${section}` : "";
}

function write() {
  waiting = 0;
  if (text() !== location.hash) history.replaceState(null, "", text() || location.pathname + location.search);
}

/* Whole and finite numbers of a value, so many; null where it is anything else. */
function numbers(value, count) {
  const found = (value ?? "").split(",").map(Number);
  return value && found.length === count && found.every(Number.isFinite) ? found : null;
}

GM.address = {
  get: (name) => kept.get(name),
  numbers: (name, count) => numbers(kept.get(name), count),
  number: (name) => numbers(kept.get(name), 1)?.[0] ?? null,
  choice: (name, choices) => (choices.includes(kept.get(name)) ? kept.get(name) : null),
  set: (name, value) => {
    if (value === null || value === "") kept.delete(name);
    else kept.set(name, String(value));
    waiting ||= setTimeout(write, SETTLED_MS);
  },
  forgetView: () => OF_A_VIEW.forEach((name) => GM.address.set(name, null)),
  /* Goes to the section of the address; what stands above it is drawn before, so that it stays where it is then. */
  go: () => {
    const found = document.getElementById(section);
    if (!found) return;
    GM.drawAll();
    found.scrollIntoView();
  },
  watch: (apply) => {
    // What a person touches is where the address leads to.
    for (const name of ["pointerdown", "keydown"])
      document.addEventListener(name, (event) => { section = event.target.closest?.("main section")?.id ?? section; }, true);
    window.addEventListener("hashchange", () => {
      const before = kept;
      read();
      if (location.hash.includes("?")) apply();
      else {
        kept = before; // a link to a section: what is shown stays
        GM.address.go();
      }
      write();
    });
  },
};

read();
GM.expose("address", () => text());
