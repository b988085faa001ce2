"use strict";
/* The table of sites: searched, sorted, picked with mouse or keyboard. */

const ROWS_SHOWN = 25;
const COLUMNS = [
  ["name", "Site", false],
  ["peak_bytes", "At the peak", true],
  ["share", "Of the peak", true],
  ["block_count", "Blocks", true],
  ["most_bytes", "At most", true],
  ["alloc_count", "Allocs", true],
];
const settings = { sort: "peak_bytes", descending: true, search: "", all: false };

GM.expose("sites", () => ({ ...settings }));
GM.figures.push({ id: "sites", draw: (element) => new Sites(element).handle() });

class Sites {
  constructor(element) {
    settings.search = GM.address.get("search") ?? "";
    this.view = GM.view();
    const rows = this.view.site_rows;
    const columns = Object.fromEntries(["site", "peak_bytes", "block_count", "most_bytes", "alloc_count"].map((name) => [name, GM.column(rows[name])]));
    this.rows = Array.from(columns.site, (site, at) => ({
      site, stack: rows.stack[at], name: GM.siteText(site), searched: GM.siteTitle(site).toLowerCase(),
      peak_bytes: columns.peak_bytes[at], share: columns.peak_bytes[at], block_count: columns.block_count[at], most_bytes: columns.most_bytes[at], alloc_count: columns.alloc_count[at],
    }));
    this.build(element);
    this.fill();
  }

  handle() {
    return { select: () => { this.fill(); this.tellStack(); } };
  }

  build(element) {
    const search = GM.make("input", { type: "search", id: "sites-search", placeholder: "Search sites", "aria-label": "Search sites", value: settings.search });
    search.addEventListener("input", () => { settings.search = search.value; GM.address.set("search", search.value); this.fill(); });
    this.count = GM.make("span", { class: "quiet", id: "sites-count", role: "status" });
    this.heads = COLUMNS.map(([name, title, isNumber]) => GM.make("th", { scope: "col", class: isNumber ? "number" : "", "data-column": name },
      GM.make("button", { type: "button", text: title, onclick: () => this.sortBy(name, isNumber) })));
    this.body = GM.make("tbody");
    this.more = GM.make("button", { type: "button", id: "sites-more", onclick: () => { settings.all = !settings.all; this.fill(); } });
    this.detail = GM.make("div", { id: "sites-stack" });
    this.table = GM.make("table", { id: "sites-table" }, GM.make("thead", {}, GM.make("tr", {}, ...this.heads)), this.body);
    element.append(GM.make("div", { class: "controls" }, search, this.count), GM.make("div", { class: "scroll" }, this.table), this.more, this.detail);
  }

  sortBy(name, isNumber) {
    settings.descending = settings.sort === name ? !settings.descending : isNumber;
    settings.sort = name;
    this.fill();
  }

  fill() {
    const words = settings.search.toLowerCase().split(/\s+/).filter(Boolean);
    const found = this.rows.filter((row) => words.every((word) => row.searched.includes(word)));
    const sign = settings.descending ? -1 : 1;
    const key = settings.sort;
    found.sort((one, other) => (one[key] < other[key] ? -sign : one[key] > other[key] ? sign : one.site - other.site));
    const marked = GM.state.site;
    let shown = settings.all ? found : found.slice(0, ROWS_SHOWN);
    const picked = found.find((row) => row.site === marked);
    if (picked && !shown.includes(picked)) shown = [...shown, picked];
    this.body.replaceChildren(...shown.map((row) => this.row(row, row.site === marked)));
    GM.fold(this.table);
    for (const head of this.heads) head.setAttribute("aria-sort", head.dataset.column !== key ? "none" : settings.descending ? "descending" : "ascending");
    const listed = this.view.site_count > this.rows.length ? `; the first ${GM.count(this.rows.length)} of ${GM.count(this.view.site_count)} are listed` : "";
    this.count.textContent = `${GM.counted(found.length, "site")}${words.length ? " found" : ""}${listed}`;
    this.more.hidden = found.length <= ROWS_SHOWN;
    this.more.textContent = settings.all ? "Show fewer" : `Show all ${GM.count(found.length)}`;
  }

  row(row, isMarked) {
    const where = GM.page.sites[row.site];
    const name = GM.make("td", { title: GM.siteTitle(row.site) },
      GM.siteDot(row.site),
      where ? where.function : "no Python stack",
      ...(where ? [GM.make("span", { class: "where", text: GM.placeText(where) })] : []));
    const numbers = [GM.bytes(row.peak_bytes), GM.share(row.peak_bytes, this.view.peak.bytes), GM.count(row.block_count), GM.bytes(row.most_bytes), GM.count(row.alloc_count)];
    const made = GM.make("tr", { "data-site": row.site, "aria-selected": String(isMarked) }, name, ...numbers.map((text) => GM.make("td", { class: "number", text })));
    return GM.pickable(made, () => {
      GM.toggle(row.site);
      this.body.querySelector(`[data-site="${row.site}"]`)?.focus({ preventScroll: true });
    });
  }

  /* The heaviest stack of the marked site, innermost frame first. */
  tellStack() {
    const row = this.rows.find((one) => one.site === GM.state.site);
    if (!row || !row.stack.length) return this.detail.replaceChildren();
    const frames = row.stack.map((frame) => GM.make("li", { text: GM.frameText(GM.page.frames[frame]) }));
    return this.detail.replaceChildren(GM.make("div", { class: "stack" }, GM.make("b", { text: `The call stack that holds most of ${row.name}, innermost first` }), GM.make("ol", {}, ...frames)));
  }
}
