// The tree of sites: the filter shows those whose names contain every word, with the branches that lead to them. Links to
// a row of a table show it even if a filter hides it.
"use strict";

(() => {
  for (const area of document.querySelectorAll(".sites")) {
    const box = area.querySelector("input");
    const count = area.querySelector("output");
    const nodes = [...area.querySelectorAll("[data-site]")];
    const wasOpen = new Map(nodes.map((node) => [node, node.open]));
    const update = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      const isFound = (node) => words.every((word) => node.dataset.site.toLowerCase().includes(word));
      const found = new Set(nodes.filter(isFound));
      for (const node of nodes) {
        node.hidden = !found.has(node) && !node.querySelector("[data-site]") && words.length > 0;
      }
      // From the leaves up: a branch stays if it is found itself or anything below it stays.
      for (const node of [...nodes].reverse()) {
        if (node.tagName !== "DETAILS") continue;
        const below = [...node.children].filter((child) => child.dataset.site);
        node.hidden = !found.has(node) && below.every((child) => child.hidden);
        node.open = words.length ? below.some((child) => !child.hidden) : wasOpen.get(node);
      }
      count.textContent = words.length ? `${found.size} of ${nodes.length} sites` : `${nodes.length} sites`;
    };
    box.addEventListener("input", update);
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      box.value = "";
      update();
    });
    area.querySelector(".filter").hidden = false;
    update();
  }

  for (const link of document.querySelectorAll("[data-reveal]")) {
    link.addEventListener("click", () => {
      const row = document.getElementById(link.dataset.reveal);
      row.hidden = false;
      for (let box = row.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
      row.focus({ preventScroll: true });
    });
  }
})();
