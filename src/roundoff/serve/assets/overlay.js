// The losses of many runs: the search hides curves, groups share a colour, and smoothing is an average that forgets.
"use strict";

(() => {
  const byId = (name) => document.getElementById(name);
  const [place, search, group, smooth, log] = ["overlay", "search", "group", "smooth", "log"].map(byId);
  const { runs } = charts.read("overlay");
  const COLOURS = ["#0b5cad", "#c2410c", "#2b8a3e", "#8a5cc2", "#b08900", "#0f766e", "#b4236f", "#5b6470", "#7c3f00", "#4d5bd6"];

  function smoothed(losses, weight) {
    let mean = null;
    return losses.map((loss) => {
      if (loss === null) return null;
      mean = mean === null ? loss : weight * mean + (1 - weight) * loss;
      return mean;
    });
  }

  function isWanted(run) {
    const text = [run.name, run.recipe, run.model, run.verdict, run.state].join(" ").toLowerCase();
    return search.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  function update() {
    const weight = Number(smooth.value) / 100;
    const keys = [...new Set(runs.map((run) => (group.value === "none" ? run.name : run[group.value])))];
    const shown = runs.filter(isWanted);
    const seen = new Set();
    const data = shown.map((run) => {
      const key = group.value === "none" ? run.name : run[group.value];
      const isFirst = !seen.has(key);
      seen.add(key);
      const colour = COLOURS[keys.indexOf(key) % COLOURS.length];
      return {
        type: "scatter", mode: run.steps.length > 1 ? "lines" : "markers", x: run.steps, y: smoothed(run.losses, weight),
        name: charts.plain(key), legendgroup: key, showlegend: isFirst, line: { width: 1.4, color: colour }, marker: { color: colour },
        hovertemplate: `${charts.plain(run.name)}<br>step %{x}: %{y:.4g}<extra></extra>`,
      };
    });
    const layout = { xaxis: { title: { text: "step" } }, yaxis: { title: { text: "loss" }, type: log.checked ? "log" : "linear" } };
    charts.drawWhenSeen(place, () => ({ data, layout }));
    const names = new Set(shown.map((run) => run.name));
    for (const entry of document.querySelectorAll("#shown li")) entry.hidden = !names.has(entry.dataset.run);
    byId("count").textContent = `${shown.length} of ${runs.length} runs`;
  }

  for (const control of [search, group, smooth, log]) control.addEventListener("input", update);
  update();
})();
