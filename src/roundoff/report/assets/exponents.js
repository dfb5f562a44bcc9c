// The magnitudes of one tensor by powers of two, above the range of each format; selected by step, kind, site and name.
"use strict";

(() => {
  const data = charts.read("exponents");
  if (!data) return;

  const byId = (name) => document.getElementById(name);
  const selects = Object.fromEntries(["step", "kind", "site", "tensor"].map((name) => [name, byId(`exponent-${name}`)]));
  const percent = (share) => (share <= 0 ? "0 %" : share < 0.001 ? "<0.1 %" : `${Number((100 * share).toPrecision(2))} %`);
  const power = (exponent) => `2<sup>${exponent}</sup>`;

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  // The lists to select from

  function offer(select, values, textOf, chosen) {
    const known = [...new Set(values)];
    select.replaceChildren(...known.map((value) => element("option", { value, textContent: textOf(value) })));
    select.value = known.map(String).includes(String(chosen)) ? chosen : known[0];
    select.disabled = known.length < 2;
    return select.value;
  }

  // Each list offers what exists for the selections before it; a selection that still exists is kept.
  function offerAll(wanted) {
    let places = data.tensors.map((_, place) => place);
    const narrow = (name, textOf) => {
      const valueOf = (place) => data.tensors[place][name];
      const value = offer(selects[name], places.map(valueOf), textOf, wanted[name]);
      places = places.filter((place) => String(valueOf(place)) === value);
    };
    narrow("step", (step) => data.steps[step]);
    narrow("kind", (kind) => data.kinds[kind]);
    narrow("site", (site) => data.sites[site]);
    offer(selects.tensor, places, (place) => data.tensors[place].name, wanted.place);
  }

  function chosenTensor() {
    return data.tensors[Number(selects.tensor.value)];
  }

  // The chart

  function rangesOf(tensor) {
    return [...data.formats, ...(tensor.fixed ? [tensor.fixed] : [])];
  }

  function histogram(tensor) {
    const total = tensor.counts.reduce((sum, count) => sum + count, 0);
    const buckets = tensor.counts.map((_, nth) => tensor.begin + nth);
    const words = (bucket) => {
      const [begin, end] = [data.begins[bucket], data.begins[bucket + 1]];
      if (bucket === 0) return `below ${power(end)}`;
      return bucket === data.begins.length - 2 ? `${power(begin)} and more` : `from ${power(begin)} to ${power(end)}`;
    };
    return {
      type: "bar",
      name: "elements",
      x: buckets.map((bucket) => data.begins[bucket] + 0.5),
      y: tensor.counts.map((count) => (100 * count) / Math.max(1, total)),
      width: buckets.map(() => 0.95),
      text: buckets.map(words),
      textposition: "none",
      hovertemplate: "%{text}: %{y:.2f} %<extra></extra>",
      marker: { color: "var(--accent)" },
      showlegend: false,
    };
  }

  function bars(ranges, name, colour, from, to, low, high) {
    const within = (value) => Math.min(high, Math.max(low, value));
    return {
      type: "bar",
      orientation: "h",
      name,
      y: ranges.map((range) => range.name),
      base: ranges.map((range) => within(from(range))),
      x: ranges.map((range) => within(to(range)) - within(from(range))),
      yaxis: "y2",
      hoverinfo: "skip",
      marker: { color: colour },
    };
  }

  function figure() {
    const tensor = chosenTensor();
    const ranges = rangesOf(tensor).reverse();
    const low = data.begins[0];
    const high = data.begins[data.begins.length - 1];
    const ticks = data.begins.filter((_, place) => place % 8 === 0);
    return {
      data: [
        histogram(tensor),
        bars(ranges, "full digits", "var(--optimizer)", (range) => range.normal, (range) => range.largest, low, high),
        bars(ranges, "reduced precision", "var(--rough)", (range) => range.smallest, (range) => range.normal, low, high),
      ],
      layout: {
        barmode: "overlay",
        xaxis: { range: [low, high], tickvals: ticks, ticktext: ticks.map(power), title: { text: "magnitude" }, anchor: "y2" },
        yaxis: { title: { text: "share, %" }, domain: [0.42, 1], rangemode: "tozero" },
        yaxis2: { domain: [0, 0.34], showgrid: false, fixedrange: true },
        bargap: 0.35,
      },
    };
  }

  // The same as numbers

  function cutsTable(tensor) {
    const heads = ["format", "above its largest", "become 0", "lose precision"];
    const rows = rangesOf(tensor).map((range, nth) => {
      const cells = tensor.cuts[nth].map((share) => element("td", { className: "number", textContent: percent(share) }));
      const isCut = tensor.cuts[nth][0] > 0 || tensor.cuts[nth][1] > 0;
      return element("tr", { className: isCut ? "tainted" : "" }, element("th", { scope: "row", textContent: range.name }), ...cells);
    });
    const headings = heads.map((text, nth) => element("th", { scope: "col", className: nth ? "number" : "", textContent: text }));
    return element("table", { className: "plain" }, element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...rows));
  }

  function show() {
    const tensor = chosenTensor();
    byId("exponent-words").textContent = `${data.sites[tensor.site]} / ${tensor.name}: ${tensor.about}.`;
    charts.drawWhenSeen(byId("exponent-chart"), figure);
    byId("exponent-cuts").replaceChildren(cutsTable(tensor));
  }

  function choose(place) {
    const { step, kind, site } = data.tensors[place];
    offerAll({ step, kind, site, place });
    show();
  }

  for (const name of ["step", "kind", "site"]) {
    selects[name].addEventListener("change", () => {
      const [step, kind, site] = ["step", "kind", "site"].map((each) => selects[each].value);
      const before = chosenTensor().name;
      const alike = data.tensors.findIndex((each) => String(each.step) === step && each.kind === kind && String(each.site) === site && each.name === before);
      offerAll({ step, kind, site, place: alike });
      show();
    });
  }
  selects.tensor.addEventListener("change", show);
  for (const button of document.querySelectorAll("button[data-tensor]")) {
    button.addEventListener("click", () => {
      choose(Number(button.dataset.tensor));
      byId("exponent-view").scrollIntoView();
      selects.tensor.focus({ preventScroll: true });
    });
  }
  document.querySelector("#exponent-view .controls").hidden = false;
  choose(data.first);
})();
