// Tables sort by their headings and are filtered by their box; without JavaScript they are still readable.
"use strict";

function valueOf(row, place) {
  const value = row.cells[place].dataset.value;
  if (value === undefined) return null;
  const isNumber = value !== "" && !Number.isNaN(Number(value.replace("inf", "Infinity")));
  return isNumber ? Number(value.replace("inf", "Infinity")) : value;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a < b ? -1 : a > b ? 1 : 0;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// Rows without a value come last both ways, and equal rows keep the order in which the page was written.
function sortRows(table, rows, place, direction) {
  const keyed = rows.map((row, nth) => ({ row, nth, value: valueOf(row, place) }));
  keyed.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.nth - b.nth;
    return direction * compare(a.value, b.value) || a.nth - b.nth;
  });
  table.tBodies[0].append(...keyed.map((each) => each.row));
}

function makeSortable(table) {
  const rows = [...table.tBodies[0].rows];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, place) => {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      // The first click on a column of numbers shows the largest first: usually those matter.
      const first = heading.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const now = before === first ? other : first;
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", now);
      sortRows(table, rows, place, now === "ascending" ? 1 : -1);
    });
  });
}

// A row stays if it shows every word of the box; innerText leaves out what is folded, which does not count.
function makeFilterable(area) {
  const box = area.querySelector("input");
  const count = area.querySelector("output");
  const rows = [...area.querySelector("tbody").rows];
  let texts = null; // of a folded table they are empty, so they are read when the box is first used
  const update = () => {
    texts ??= rows.map((row) => row.innerText.toLowerCase());
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, nth) => (row.hidden = !words.every((word) => texts[nth].includes(word))));
    const shown = rows.filter((row) => !row.hidden).length;
    const noun = count.dataset.noun;
    count.textContent = shown === rows.length ? `${shown} ${noun}` : `${shown} of ${rows.length} ${noun}`;
  };
  box.addEventListener("input", update);
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    box.value = "";
    update();
  });
  area.querySelector(".filter").hidden = false;
}

for (const area of document.querySelectorAll(".filtered")) {
  makeSortable(area.querySelector("table"));
  makeFilterable(area);
}
