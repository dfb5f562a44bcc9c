// The list of runs: search, filters, sorting and selection; rows that changed on the server are updated.
"use strict";

(() => {
  const byId = (name) => document.getElementById(name);
  const form = byId("list");
  const table = byId("runs");
  const [search, onlyState, onlyFindings] = [byId("search"), byId("only-state"), byId("only-findings")];
  const rows = () => [...table.tBodies[0].rows];
  const picks = []; // names in the order in which they were picked: the first is the reference
  const STEPS = 5; // the column of the number of steps
  let order = null;

  // What is shown

  const textOf = (row) => row.innerText.toLowerCase();
  const texts = new WeakMap();

  function isWanted(row) {
    if (!texts.has(row)) texts.set(row, textOf(row));
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const isRight = (choice, value) => !choice.value || choice.value === value;
    return words.every((word) => texts.get(row).includes(word)) && isRight(onlyState, row.dataset.state) && isRight(onlyFindings, row.dataset.findings);
  }

  function filter() {
    const all = rows();
    for (const row of all) row.hidden = false; // innerText of a hidden row is empty
    for (const row of all) row.hidden = !isWanted(row);
    const shown = all.filter((row) => !row.hidden).length;
    byId("count").textContent = shown === all.length ? `${all.length} runs` : `${shown} of ${all.length} runs`;
    byId("no-runs").hidden = all.length > 0;
    form.hidden = all.length === 0;
    keepInAddress();
  }

  function sort() {
    if (!order) return;
    const focused = document.activeElement; // moving a row in the document takes the focus away
    sortRows(table, rows(), order.place, order.direction);
    if (table.contains(focused)) focused.focus({ preventScroll: true });
  }

  function showMoments() {
    for (const moment of table.querySelectorAll("time")) {
      const date = new Date(moment.dateTime);
      if (Number.isNaN(date.getTime())) continue;
      const two = (value) => String(value).padStart(2, "0");
      moment.textContent = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
      moment.title = date.toString();
    }
  }

  // Filters are kept in the URL, so that it can be reloaded and shared.
  function keepInAddress() {
    const filters = new URLSearchParams();
    if (search.value) filters.set("search", search.value);
    if (onlyState.value) filters.set("state", onlyState.value);
    if (onlyFindings.value) filters.set("findings", onlyFindings.value);
    history.replaceState(null, "", filters.size ? `#${filters}` : location.pathname);
  }

  function takeFromAddress() {
    const filters = new URLSearchParams(location.hash.slice(1));
    search.value = filters.get("search") || "";
    onlyState.value = filters.get("state") || "";
    onlyFindings.value = filters.get("findings") || "";
    if (onlyState.selectedIndex < 0) onlyState.value = "";
    if (onlyFindings.selectedIndex < 0) onlyFindings.value = "";
  }

  // Picking runs

  function showPicks() {
    const words = byId("picked");
    if (picks.length === 2) words.textContent = `${picks[1]} against ${picks[0]}`;
    else if (picks.length === 1) words.textContent = `${picks[0]} is the reference; pick the run to compare with it.`;
    else if (picks.length > 2) words.textContent = `${picks.length} runs to overlay`;
    else words.textContent = "Pick two runs to compare them, or any number to overlay their losses.";
    byId("swap").hidden = picks.length !== 2;
    byId("compare").disabled = picks.length !== 2;
  }

  function pick(box) {
    const at = picks.indexOf(box.value);
    if (box.checked && at < 0) picks.push(box.value);
    if (!box.checked && at >= 0) picks.splice(at, 1);
    showPicks();
  }

  // Updates from the server

  function take(fresh) {
    const known = new Map(rows().map((row) => [row.dataset.run, row]));
    for (const row of [...fresh.querySelectorAll("#runs tbody tr")]) {
      const old = known.get(row.dataset.run);
      known.delete(row.dataset.run);
      if (!old) {
        table.tBodies[0].prepend(row);
        row.classList.add("changed");
      } else if (old.dataset.version !== row.dataset.version) update(old, row);
    }
    for (const [name, row] of known) {
      if (picks.includes(name)) picks.splice(picks.indexOf(name), 1);
      row.remove();
    }
    showMoments();
    sort();
    filter();
    showPicks();
  }

  // Unchanged cells are kept, so that focus and selection in them are not lost.
  function update(old, row) {
    const hasBox = (cell) => cell.querySelector("input") !== null;
    const isNews = old.dataset.state !== row.dataset.state || old.cells[STEPS].innerText !== row.cells[STEPS].innerText;
    [...row.cells].forEach((cell, nth) => {
      const was = old.cells[nth];
      if (!(hasBox(was) && hasBox(cell)) && was.outerHTML !== cell.outerHTML) was.replaceWith(cell);
    });
    Object.assign(old.dataset, row.dataset);
    texts.delete(old);
    old.classList.remove("changed");
    void old.offsetWidth; // reading it forces a reflow, without which the animation does not restart
    old.classList.toggle("changed", isNews);
  }

  async function look() {
    const answer = await fetch("/api/changes");
    if (!answer.ok) throw new Error((await answer.json()).error);
    const versions = (await answer.json()).runs;
    const shown = new Map(rows().map((row) => [row.dataset.run, row.dataset.version]));
    const names = Object.keys(versions);
    if (names.length === shown.size && names.every((name) => shown.get(name) === versions[name])) return;
    const page = await (await fetch("/")).text();
    take(new DOMParser().parseFromString(page, "text/html"));
  }

  async function keepLooking() {
    const pause = 1000 * Number(form.dataset.pollSeconds);
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, pause));
      if (document.hidden) continue;
      try {
        await look();
        byId("live").textContent = "";
      } catch (error) {
        byId("live").textContent = `The server does not answer (${error.message}). This is the last known state.`;
      }
    }
  }

  [...table.tHead.rows[0].cells].forEach((heading, place) => {
    heading.querySelector("button")?.addEventListener("click", () => {
      const first = heading.classList.contains("number") ? -1 : 1;
      order = { place, direction: order?.place === place ? -order.direction : first };
      for (const each of table.querySelectorAll("th")) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order.direction > 0 ? "ascending" : "descending");
      sort();
    });
  });
  for (const control of [search, onlyState, onlyFindings]) control.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault(); // it would submit the form
    if (event.key !== "Escape") return;
    search.value = "";
    filter();
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input:not([type=checkbox]), select")) return;
    event.preventDefault();
    search.focus();
  });
  table.addEventListener("change", (event) => event.target.name === "run" && pick(event.target));
  byId("swap").addEventListener("click", () => {
    picks.reverse();
    showPicks();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter?.id === "overlay") {
      const shown = rows().filter((row) => !row.hidden && row.dataset.state !== "damaged").map((row) => row.dataset.run);
      const names = picks.length ? picks : shown.slice(0, 50);
      location.href = `/overlay?${new URLSearchParams(names.map((name) => ["run", name]))}`;
      return;
    }
    if (picks.length !== 2) return;
    location.href = `/compare?${new URLSearchParams({ reference: picks[0], candidate: picks[1] })}`;
  });

  for (const box of table.querySelectorAll("input[name=run]:checked")) pick(box); // browsers restore checked boxes when a page is reloaded
  byId("filters").hidden = false;
  takeFromAddress();
  showMoments();
  filter();
  showPicks();
  keepLooking();
})();
