// The state of a page as the reader left it (unfolded, filtered, selected, sorted, scrolled), moved from one page to another.
"use strict";

const reading = (() => {
  // Elements are identified by section, kind and position; folds also by their text.
  function keyed(page, selector, wordsOf = () => "") {
    const seen = new Map();
    return [...page.querySelectorAll(selector)].map((element) => {
      const section = element.closest("section[id]");
      const words = element.id || `${section ? section.id : ""} ${wordsOf(element)}`;
      const nth = seen.get(words) || 0;
      seen.set(words, nth + 1);
      return [`${words} ${nth}`, element];
    });
  }

  const folds = (page) => keyed(page, "details", (fold) => fold.dataset.site || fold.querySelector("summary")?.textContent);
  const boxes = (page) => keyed(page, "input, select");
  const sorted = (page) => keyed(page, "th", (heading) => heading.textContent);
  const areas = (page) => keyed(page, ".scrolling");
  const shownOption = (choice) => choice.selectedOptions[0]?.textContent;

  // The section at the top of the window, and the offset in it: content that grows above does not move the reader.
  function placeIn(page) {
    const above = [...page.querySelectorAll("section[id]")].filter((section) => section.getBoundingClientRect().top <= 60);
    const section = above.at(-1);
    const top = page.scrollingElement.scrollTop;
    return section ? { key: section.id, offset: -section.getBoundingClientRect().top } : { key: null, offset: top };
  }

  // A chart is zoomed if one of its axes has a range that its data does not set.
  function zoomOf(page, place) {
    const block = page.getElementById(`data-${place.dataset.chart}`);
    if (!block || !place.layout) return null;
    const before = JSON.parse(block.textContent).layout;
    const axes = Object.keys(place.layout).filter((name) => /^[xy]axis/.test(name));
    const isZoomed = (name) => place.layout[name].autorange === false && !before[name]?.range;
    const ranges = axes.filter(isZoomed).map((name) => [`${name}.range`, [...place.layout[name].range]]);
    return ranges.length ? Object.fromEntries(ranges) : null;
  }

  const zoomed = (page) => [...page.querySelectorAll("[data-chart]")].map((place) => [place.dataset.chart, zoomOf(page, place)]);

  // Called when the visible charts are drawn; later ones keep their own ranges.
  function giveZoom(page, state) {
    for (const place of page.querySelectorAll("[data-chart].js-plotly-plot")) {
      const ranges = state.zoomed.get(place.dataset.chart);
      if (ranges) page.defaultView.Plotly.relayout(place, ranges);
    }
  }

  function take(page) {
    return {
      zoomed: new Map(zoomed(page)),
      place: placeIn(page),
      folds: new Map(folds(page).map(([key, fold]) => [key, fold.open])),
      boxes: new Map(boxes(page).map(([key, box]) => [key, box.tagName === "SELECT" ? shownOption(box) : box.value])),
      focused: boxes(page).find(([, box]) => box === page.activeElement)?.[0],
      sorted: new Map(sorted(page).map(([key, heading]) => [key, heading.getAttribute("aria-sort")])),
      areas: new Map(areas(page).map(([key, area]) => [key, [area.scrollTop, area.scrollLeft]])),
    };
  }

  function giveBox(box, value) {
    if (box.tagName !== "SELECT") {
      if (box.value === value) return;
      box.value = value;
      box.dispatchEvent(new Event("input", { bubbles: true }));
      return;
    }
    const option = [...box.options].find((each) => each.textContent === value);
    if (!option || option.selected) return;
    option.selected = true;
    box.dispatchEvent(new Event("change", { bubbles: true }));
  }

  function giveOrder(page, key, direction) {
    for (let nth = 0; nth < 2; nth += 1) {
      const heading = new Map(sorted(page)).get(key); // a click may replace the headings
      if (!heading || heading.getAttribute("aria-sort") === direction) return;
      heading.querySelector("button")?.click();
    }
  }

  function give(page, state) {
    for (const [key, box] of boxes(page)) if (state.boxes.has(key)) giveBox(box, state.boxes.get(key));
    for (const [key, direction] of state.sorted) if (direction) giveOrder(page, key, direction);
    for (const [key, fold] of folds(page)) if (state.folds.has(key)) fold.open = state.folds.get(key);
    for (const [key, area] of areas(page)) if (state.areas.has(key)) [area.scrollTop, area.scrollLeft] = state.areas.get(key);
    givePlace(page, state.place);
  }

  function givePlace(page, place) {
    const section = place.key && page.getElementById(place.key);
    const begin = section ? section.getBoundingClientRect().top + page.scrollingElement.scrollTop : 0;
    page.scrollingElement.scrollTop = begin + place.offset;
  }

  // A reader who was typing can continue: focusing a box puts the cursor at the end of its text.
  function giveFocus(frame, state) {
    frame.focus();
    new Map(boxes(frame.contentDocument)).get(state.focused)?.focus({ preventScroll: true });
  }

  return { take, give, giveZoom, giveFocus };
})();
