// Draws charts with plotly: when they come into view, all of them before printing, in the colours of the style sheet.
"use strict";

const charts = (() => {
  const PRINTED_WIDTH = 680;
  // Without `showSendToCloud: false` plotly's menu offers to upload the chart.
  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
  };
  const figures = new Map(); // what was drawn where, to be drawn again in other colours
  const waiting = new Map(); // what is still out of view

  function read(name) {
    const block = document.getElementById(`data-${name}`);
    return block && JSON.parse(block.textContent);
  }

  // Plotly interprets some tags and links in any text; names from the run must be shown as they are.
  function plain(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function styled(value) {
    if (typeof value === "string") {
      const named = /^var\((--[\w-]+)\)$/.exec(value);
      return named ? colour(named[1]) : value;
    }
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(styled);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, styled(entry)]));
  }

  function axis(given) {
    const lines = { gridcolor: colour("--rule"), linecolor: colour("--rule"), zerolinecolor: colour("--rule") };
    return { ...lines, automargin: true, ticks: "outside", tickcolor: colour("--rule"), ...given };
  }

  function layoutOf(place, figure) {
    const layout = styled(figure.layout);
    for (const name of Object.keys(layout)) if (/^[xy]axis/.test(name)) layout[name] = axis(layout[name]);
    const isPrinting = document.documentElement.classList.contains("printing");
    return {
      height: Number(place.dataset.height),
      width: isPrinting ? PRINTED_WIDTH : undefined,
      autosize: !isPrinting,
      margin: { l: 60, r: 20, t: 28, b: layout.showlegend === false ? 44 : 74 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: getComputedStyle(document.body).fontFamily, size: 12 },
      legend: { orientation: "h", x: 0, yref: "container", y: 0, yanchor: "bottom" },
      showlegend: true,
      hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--rule"), font: { color: colour("--text") }, align: "left" },
      hovermode: "closest",
      ...layout,
    };
  }

  // Plotly takes longer to start than all the rest of the page: it stays text until the first chart is drawn.
  function plotly() {
    if (!globalThis.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("drawing").textContent;
      document.head.append(script);
    }
    return Plotly;
  }

  function draw(place, figure) {
    waiting.delete(place);
    figures.set(place, figure);
    place.style.minHeight = `${place.dataset.height}px`;
    return plotly().react(place, styled(figure.data), layoutOf(place, figure), config);
  }

  // Drawing all charts of a page at once would block it for seconds: only those near the window are drawn.
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting || !waiting.has(entry.target)) continue;
        observer.unobserve(entry.target);
        setTimeout(() => waiting.has(entry.target) && draw(entry.target, waiting.get(entry.target)())); // the page first
      }
    },
    { rootMargin: "400px" },
  );

  // Keeps the figure until its place comes into view; what is drawn there already is replaced at once.
  function drawWhenSeen(place, makeFigure) {
    if (figures.has(place)) return draw(place, makeFigure());
    waiting.set(place, makeFigure);
    if (document.readyState !== "loading") observer.observe(place);
    return null;
  }

  function drawAll() {
    for (const [place, makeFigure] of [...waiting]) draw(place, makeFigure());
  }

  function drawAgain() {
    for (const [place, figure] of figures) draw(place, figure);
  }

  for (const place of document.querySelectorAll(".plot")) place.style.minHeight = `${place.dataset.height}px`;
  for (const place of document.querySelectorAll("[data-chart]")) drawWhenSeen(place, () => read(place.dataset.chart));

  // What the other scripts prepare comes first.
  addEventListener("DOMContentLoaded", () => {
    for (const place of waiting.keys()) observer.observe(place);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAgain);
  // Browsers print charts at the size they have on the screen, which may be wider than the paper.
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    drawAll();
    drawAgain();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    drawAgain();
  });

  return { read, plain, drawWhenSeen };
})();
