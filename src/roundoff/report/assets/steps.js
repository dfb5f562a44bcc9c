// One recorded step: its results in the order of computation, the path of its bad values, and a table.
"use strict";

(() => {
  const data = charts.read("steps");
  if (!data) return;

  const MAX_LANES = 14;
  const ROWS_AT_ONCE = 200;
  const PHASES = ["forward", "backward", "optimizer", "eval"];
  const byId = (name) => document.getElementById(name);
  const choice = byId("step-choice");
  const limits = byId("step-limits");
  const toOrigin = byId("step-origin");
  let step = data.steps[Number(choice.value)];

  const textOf = (column, row) => data.names[column][step.columns[column][row]];
  const number = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(3)).toString());
  const percent = (share) => (share ? `${Number((100 * share).toPrecision(2))} %` : "");
  const opOf = (row) => `${textOf("op", row)}#${step.columns.nth[row]}`;
  const placeOf = (row) => `${textOf("site", row)} / ${opOf(row)}`;
  const formatOf = (row) => data.formats[textOf("dtype", row)] || textOf("dtype", row);
  const allRows = () => step.columns.place.map((_, row) => row);
  let reached = new Set();
  let masks = new Set();

  function stateOf(row) {
    if (row === step.origin) return "origin";
    if (reached.has(row)) return "from the origin";
    if (masks.has(row)) return "masked";
    return step.columns.nonfinite[row] ? "not finite" : "";
  }

  function wordsOf(row) {
    const lines = [placeOf(row), `${textOf("phase", row)}, ${formatOf(row)} ${textOf("shape", row) || "scalar"}`];
    lines.push(`largest magnitude ${number(step.columns.absmax[row]) || "no finite value"}`);
    if (step.columns.nonfinite[row]) lines.push(`${step.columns.nonfinite[row]} not finite; ${stateOf(row)}`);
    if (textOf("source", row)) lines.push(textOf("source", row));
    return lines.map(charts.plain).join("<br>");
  }

  function points(rows, more) {
    return {
      type: "scatter",
      mode: "markers",
      x: rows.map((row) => step.columns.place[row]),
      text: rows.map(wordsOf),
      customdata: rows,
      hovertemplate: "%{text}<extra></extra>",
      ...more,
    };
  }

  function orderAxis() {
    const range = [-0.02 * step.num_results - 1, 1.02 * step.num_results];
    return { title: { text: "result, in the order of computing" }, range };
  }

  // The chart of magnitudes

  function timeline() {
    const { absmax, nonfinite, place } = step.columns;
    const finite = allRows().filter((row) => absmax[row] > 0);
    const bad = allRows().filter((row) => nonfinite[row] && row !== step.origin && !masks.has(row));
    const traces = PHASES.map((phase) => {
      const rows = finite.filter((row) => textOf("phase", row) === phase);
      const marker = { color: `var(--${phase})`, size: rows.length > 1500 ? 4 : 6 };
      return points(rows, { name: phase, y: rows.map((row) => absmax[row]), marker });
    }).filter((trace) => trace.x.length);
    if (step.masks.length) {
      const marker = { color: "var(--reference)", size: 6, symbol: "x-thin-open" };
      traces.push(points(step.masks, { name: "-inf of a mask", y: step.masks.map(() => 0.5), yaxis: "y2", marker }));
    }
    if (bad.length) {
      const marker = { color: "var(--bad)", size: 7, symbol: "x" };
      traces.push(points(bad, { name: "not finite", y: bad.map(() => 0.5), yaxis: "y2", marker }));
    }
    const layout = {
      xaxis: orderAxis(),
      yaxis: { type: "log", exponentformat: "power", title: { text: "largest magnitude" }, domain: [0, 0.9] },
      yaxis2: { domain: [0.92, 1], range: [0, 1], fixedrange: true, showticklabels: false, ticks: "", showgrid: false, zeroline: false },
      shapes: [],
      annotations: [],
    };
    if (step.origin !== null) {
      const marker = { color: "var(--bad)", size: 15, symbol: "star", line: { color: "var(--text)", width: 1 } };
      traces.push(points([step.origin], { name: "origin", y: [0.5], yaxis: "y2", marker }));
      const x = place[step.origin];
      layout.shapes.push({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: "var(--bad)", width: 1.2, dash: "dot" } });
      const side = x > 0.6 * step.num_results ? "right" : "left";
      const words = `origin: ${charts.plain(placeOf(step.origin))}`;
      layout.annotations.push({ x, yref: "paper", y: 1.01, yanchor: "bottom", xanchor: side, showarrow: false, text: words, font: { color: "var(--bad)" } });
    }
    addLimits(layout);
    return { data: traces, layout };
  }

  function addLimits(layout) {
    const known = data.limits[limits.value];
    if (!known) return;
    const numbers = [[known.largest, `largest ${limits.value}`], [known.smallest, `smallest normal ${limits.value}`]];
    for (const [value, words] of numbers) {
      const line = { color: "var(--failed)", width: 1, dash: "dash" };
      layout.shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line });
      const y = Math.log10(value);
      layout.annotations.push({ xref: "paper", x: 1, y, xanchor: "right", yanchor: "bottom", showarrow: false, text: words, font: { color: "var(--failed)", size: 11 } });
    }
  }

  // The chart of the flow: a lane for each site, a line from each result to those that have its bad values

  function flowChart() {
    const rows = [step.origin, ...step.flow.map((pair) => pair[1])].filter((row) => row !== null);
    const sites = [...new Set(rows.map((row) => textOf("site", row)))];
    const lanes = sites.slice(0, MAX_LANES);
    const others = sites.length - lanes.length;
    const laneOf = (row) => {
      const lane = lanes.indexOf(textOf("site", row));
      return lane < 0 ? MAX_LANES : lane;
    };
    const x = [];
    const y = [];
    for (const [from, to] of step.flow) {
      if (from === null) continue;
      x.push(step.columns.place[from], step.columns.place[to], null);
      y.push(laneOf(from), laneOf(to), null);
    }
    const lines = { type: "scatter", mode: "lines", x, y, hoverinfo: "skip", name: "flow", line: { color: "var(--bad)", width: 1 }, opacity: 0.55 };
    const carriers = rows.filter((row) => row !== step.origin);
    const marker = { color: "var(--bad)", size: 6 };
    const traces = [lines, points(carriers, { name: "contains bad values", y: carriers.map(laneOf), marker })];
    if (step.origin !== null) {
      const star = { color: "var(--bad)", size: 15, symbol: "star", line: { color: "var(--text)", width: 1 } };
      traces.push(points([step.origin], { name: "origin", y: [laneOf(step.origin)], marker: star }));
    }
    const labels = [...lanes, ...(others ? [`${others} more sites`] : [])];
    const shorten = (label) => (label.length > 34 ? `…${label.slice(-33)}` : label);
    const layout = {
      xaxis: orderAxis(),
      yaxis: { tickvals: labels.map((_, lane) => lane), ticktext: labels.map((label) => charts.plain(shorten(label))), range: [labels.length - 0.4, -0.6] },
      showlegend: false,
    };
    byId("step-flow").dataset.height = 110 + 24 * labels.length;
    return { data: traces, layout };
  }

  // The table

  const columns = [
    { name: "#", isNumber: true, value: (row) => step.columns.place[row], shown: (row) => step.columns.place[row] },
    { name: "phase", value: (row) => textOf("phase", row) },
    { name: "microbatch", isNumber: true, column: "microbatch", value: (row) => step.columns.microbatch[row] },
    { name: "site", value: (row) => textOf("site", row) },
    { name: "op", value: (row) => [opOf(row), textOf("parameter", row)].filter(Boolean).join(" ") },
    { name: "state", value: stateOf },
    { name: "format", value: formatOf },
    { name: "shape", value: (row) => textOf("shape", row) },
    { name: "absmax", isNumber: true, value: (row) => step.columns.absmax[row], shown: (row) => number(step.columns.absmax[row]) },
    { name: "zero", isNumber: true, value: (row) => step.columns.zero[row], shown: (row) => percent(step.columns.zero[row]) },
    { name: "subnormal", isNumber: true, value: (row) => step.columns.subnormal[row], shown: (row) => percent(step.columns.subnormal[row]) },
    { name: "introduced ulp", isNumber: true, column: "introduced", value: (row) => step.columns.introduced[row], shown: (row) => number(step.columns.introduced[row]) },
    { name: "not finite", isNumber: true, value: (row) => step.columns.nonfinite[row], shown: (row) => step.columns.nonfinite[row] || "" },
    { name: "source", value: (row) => textOf("source", row) },
  ];
  const order = { column: null, direction: 1 };
  let numShown = ROWS_AT_ONCE;

  function element(name, properties = {}, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  const box = element("input", { type: "search", autocomplete: "off", spellcheck: false });
  const count = element("output");
  const head = element("thead");
  const body = element("tbody");
  const more = element("button", { type: "button" });
  const region = element("div", { className: "scrolling", tabIndex: 0, ariaLabel: "results of the step" }, element("table", {}, head, body));
  region.setAttribute("role", "region");
  byId("step-table").append(element("p", { className: "filter" }, element("label", {}, "Filter ", box), " ", count), region, element("p", {}, more));

  const shownColumns = () => columns.filter((column) => !column.column || step.columns[column.column]);
  const searched = (row) => `${textOf("phase", row)} ${placeOf(row)} ${textOf("parameter", row)} ${formatOf(row)} ${textOf("shape", row)} ${stateOf(row)} ${textOf("source", row)}`.toLowerCase();

  function matching() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = allRows().filter((row) => !words.length || words.every((word) => searched(row).includes(word)));
    if (!order.column) return rows;
    const valueOf = order.column.value;
    const isMissing = (value) => value === null || value === undefined || value === "";
    return rows.sort((a, b) => {
      const [first, second] = [valueOf(a), valueOf(b)];
      if (isMissing(first) || isMissing(second)) return isMissing(first) - isMissing(second) || a - b;
      if (order.column.isNumber) return order.direction * (first - second) || a - b;
      return order.direction * String(first).localeCompare(String(second), undefined, { numeric: true }) || a - b;
    });
  }

  function rowElement(row) {
    const cells = shownColumns().map((column) =>
      element("td", { className: column.isNumber ? "number" : "", textContent: (column.shown || column.value)(row) }),
    );
    const state = row === step.origin ? "bad" : reached.has(row) ? "tainted" : "";
    const made = element("tr", { className: state, tabIndex: -1 }, ...cells);
    made.dataset.row = row;
    return made;
  }

  function showHead() {
    const headings = shownColumns().map((column) => {
      const button = element("button", { type: "button", textContent: column.name });
      const heading = element("th", { scope: "col", className: column.isNumber ? "number" : "" }, button);
      if (order.column === column) heading.setAttribute("aria-sort", order.direction > 0 ? "ascending" : "descending");
      button.addEventListener("click", () => {
        const first = column.isNumber && column.name !== "#" ? -1 : 1;
        order.direction = order.column === column ? -order.direction : first;
        order.column = column;
        showTable();
      });
      return heading;
    });
    head.replaceChildren(element("tr", {}, ...headings));
  }

  function showTable() {
    const hadFocus = head.contains(document.activeElement) ? document.activeElement.textContent : null;
    const rows = matching();
    showHead();
    body.replaceChildren(...rows.slice(0, numShown).map(rowElement));
    const all = step.columns.place.length;
    count.textContent = rows.length === all ? `${all} results` : `${rows.length} of ${all} results`;
    more.hidden = rows.length <= numShown;
    more.textContent = `Show ${Math.min(ROWS_AT_ONCE, rows.length - numShown)} more`;
    const again = [...head.querySelectorAll("button")].find((button) => button.textContent === hadFocus);
    if (again) again.focus();
  }

  function showRow(row) {
    if (!matching().includes(row)) box.value = "";
    const nth = matching().indexOf(row);
    if (nth >= numShown) numShown = nth + ROWS_AT_ONCE;
    showTable();
    const shown = body.querySelector(`tr[data-row="${row}"]`);
    shown.classList.add("chosen");
    shown.scrollIntoView({ block: "center" });
    shown.focus({ preventScroll: true });
  }

  // Selecting a step

  function drawTimeline() {
    charts.drawWhenSeen(byId("step-chart"), timeline);
  }

  function showStep() {
    step = data.steps[Number(choice.value)];
    reached = new Set(step.flow.map((pair) => pair[1]));
    masks = new Set(step.masks);
    numShown = ROWS_AT_ONCE;
    const shown = step.columns.place.length;
    const thinned = shown < step.num_results ? `${shown} of ${step.num_results} results are shown. ` : `${shown} results. `;
    const words = step.origin === null ? "" : `Bad values begin at ${placeOf(step.origin)} and reach ${reached.size} later results.`;
    byId("step-words").textContent = thinned + words;
    byId("step-words").dataset.step = step.label; // printed pages do not show the list of steps
    toOrigin.hidden = step.origin === null;
    byId("step-flow-figure").hidden = step.origin === null;
    drawTimeline();
    if (step.origin !== null) charts.drawWhenSeen(byId("step-flow"), flowChart);
    showTable();
  }

  function listen(name) {
    byId(name).on?.("plotly_click", (event) => showRow(event.points[0].customdata));
  }

  // Plotly adds `on` to an element when it first draws there.
  for (const name of ["step-chart", "step-flow"]) {
    const watcher = new MutationObserver(() => {
      if (!byId(name).on) return;
      watcher.disconnect();
      listen(name);
    });
    watcher.observe(byId(name), { childList: true, attributes: true });
  }

  for (const button of document.querySelectorAll("button[data-step]")) {
    const at = data.steps.findIndex((each) => each.step === Number(button.dataset.step) && each.rank === Number(button.dataset.rank));
    if (at < 0) continue;
    button.closest(".jump").hidden = false;
    button.addEventListener("click", () => {
      choice.value = at;
      showStep();
      byId("steps").scrollIntoView();
      if (step.origin !== null) showRow(step.origin);
    });
  }
  choice.addEventListener("change", showStep);
  limits.addEventListener("change", drawTimeline);
  toOrigin.addEventListener("click", () => showRow(step.origin));
  more.addEventListener("click", () => {
    numShown += ROWS_AT_ONCE;
    showTable();
  });
  box.addEventListener("input", () => {
    numShown = ROWS_AT_ONCE;
    showTable();
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    box.value = "";
    showTable();
  });
  document.querySelector("#step-view .controls").hidden = false;
  showStep();
})();
