"use strict";
/* Starts the page: switches, then the document, then plotly, then the figures. */

function wireSwitches() {
  const theme = document.getElementById("theme-switch");
  theme.addEventListener("change", () => GM.setTheme(theme.value));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => GM.setTheme(theme.value));
  document.getElementById("selected-clear").addEventListener("click", () => GM.select(null));
  for (const one of document.querySelectorAll("[data-mark]")) {
    const pick = () => GM.page && GM.toggle(Number(one.dataset.mark));
    if (one.tagName === "BUTTON") one.addEventListener("click", pick);
    else GM.pickable(one, pick);
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && GM.state.site !== null) GM.select(null);
  });
  for (const table of document.querySelectorAll("table:not(.ledger)")) GM.fold(table);
  for (const link of document.querySelectorAll("header nav a")) link.hidden = !document.querySelector(link.getAttribute("href"));
  document.getElementById("view-switch")?.addEventListener("change", (event) => changeView(Number(event.target.value)));
  for (const row of document.querySelectorAll("[data-show]")) GM.pickable(row, () => changeView(Number(row.dataset.show)));
}

function changeView(number) {
  if (number !== GM.state.view) GM.address.forgetView();
  GM.showView(number);
}

/* Shows what the address says, as far as this page has it. */
function followAddress() {
  const [view, site] = [GM.address.number("view"), GM.address.number("site")];
  GM.showView(GM.page.views[view] ? view : GM.page.first_view);
  GM.select(GM.page.sites[site] !== undefined ? site : null);
}

function wirePrinting() {
  let theme = "";
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme ?? "";
    GM.drawAll();
    document.documentElement.dataset.printing = "true";
    GM.setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.printing;
    GM.setTheme(theme);
  });
}

const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

async function start() {
  wireSwitches();
  await painted();
  await GM.load();
  if (document.getElementById("gm-plotly")) {
    followAddress();
    GM.drawFigures();
    await painted();
    await GM.loadPlotly();
    GM.drawFigures();
    wirePrinting();
    GM.address.watch(() => {
      followAddress();
      GM.address.go();
    });
  }
  GM.address.go();
  GM.finish();
}

start();
