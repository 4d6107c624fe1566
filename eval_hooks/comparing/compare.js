"use strict";
// The page's plots and filters. It reads compare.json, which lies in the page, and asks for nothing else.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["#0b6e99", "#c4581c", "#3a7d44", "#8a4f9e", "#b08900", "#a3324a", "#4f6272", "#159895", "#7a5c3e", "#d0659a"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MOST_AXES = 8; // of settings
const PLAIN = { displaylogo: false, responsive: true };
const names = DATA.runs.map((run) => run.name);
const colourOf = (name) => COLOURS[names.indexOf(name) % COLOURS.length];
const dashOf = (name) => DASHES[Math.floor(names.indexOf(name) / COLOURS.length) % DASHES.length];

// A metric's unit follows from the words of its second part, as in the tables.
const wordsOf = (key) => (key.split("/")[1] || "").split("_");
const scaleOf = (key) => (wordsOf(key).includes("acc") ? 100 : 1);
const unitOf = (key) => (wordsOf(key).includes("acc") ? "%" : wordsOf(key).includes("psnr") ? "dB" : "");
const unitOfChange = (key) => (wordsOf(key).includes("acc") ? "points" : unitOf(key));
const titled = (key, unit) => (unit ? `${key} (${unit})` : key);
const layoutOf = (more) => ({ margin: { l: 60, r: 20, t: 12, b: 45 }, font: { size: 12 }, hovermode: "closest", legend: { orientation: "h", y: -0.25 }, ...more });

function state() {
  const boxes = [...document.querySelectorAll("#runs input")];
  return {
    law: document.getElementById("law").value,
    flip: document.getElementById("flip").value,
    runs: new Set(boxes.filter((box) => box.checked).map((box) => box.value)),
  };
}

const shownRuns = (hook, now) => names.filter((name) => now.runs.has(name) && hook.evaluations[name]);
const headlineOf = (hook, now) => (now.law && hook.laws[now.law]) || hook.headline;

function changePlot(hook, key, now) {
  const shown = shownRuns(hook, now).filter((name) => hook.evaluations[name].metrics[key]?.change != null).reverse();
  const scale = scaleOf(key);
  const of = (name) => hook.evaluations[name].metrics[key];
  const reach = (name, side) => (of(name).ci95 ? Math.abs(of(name).ci95[side] - of(name).change) * scale : 0);
  const trace = {
    type: "scatter", mode: "markers", x: shown.map((name) => of(name).change * scale), y: shown,
    marker: { size: 9, color: shown.map(colourOf) },
    error_x: { type: "data", symmetric: false, array: shown.map((n) => reach(n, 1)), arrayminus: shown.map((n) => reach(n, 0)), color: "#8a949d" },
    hovertemplate: "%{y}: %{x:.2f}<extra></extra>",
  };
  return [[trace], layoutOf({ height: 110 + 34 * Math.max(shown.length, 3), margin: { l: 10, r: 20, t: 12, b: 45 }, yaxis: { automargin: true, type: "category", range: [-0.6, shown.length - 0.4] }, xaxis: { title: { text: titled(key, unitOfChange(key)) }, zeroline: true, zerolinewidth: 2 } })];
}

function lawsPlot(hook, now) {
  const laws = Object.keys(hook.laws).filter((law) => !now.law || law === now.law);
  const scale = scaleOf(hook.headline);
  const traces = shownRuns(hook, now).map((name) => {
    const all = laws.map((law) => hook.evaluations[name].metrics[hook.laws[law]]);
    const reach = (change, side) => (change?.ci95 ? Math.abs(change.ci95[side] - change.change) * scale : 0);
    return {
      type: "bar", name, x: laws, y: all.map((change) => (change?.change == null ? null : change.change * scale)),
      marker: { color: colourOf(name) },
      error_y: { type: "data", symmetric: false, array: all.map((c) => reach(c, 1)), arrayminus: all.map((c) => reach(c, 0)), color: "#444", thickness: 1, width: 2 },
      customdata: all.map((c) => (c?.tuned == null ? "" : `${(c.base * scale).toFixed(1)} → ${(c.tuned * scale).toFixed(1)}, n ${c.n}`)),
      hovertemplate: "%{x}: %{y:+.1f} (%{customdata})<extra>%{fullData.name}</extra>",
    };
  });
  return [traces, layoutOf({ barmode: "group", height: 380, yaxis: { title: { text: `change (${unitOfChange(hook.headline)})` }, zeroline: true, zerolinewidth: 2 } })];
}

function paretoPlot(hook, now) {
  const key = headlineOf(hook, now), scale = scaleOf(key);
  const point = (name) => ({ name, x: hook.evaluations[name].metrics[hook.psnr]?.tuned, y: hook.evaluations[name].metrics[key]?.tuned });
  const points = shownRuns(hook, now).map(point).filter((p) => p.x != null && p.y != null);
  const isBeaten = (p) => points.some((q) => q.x >= p.x && q.y >= p.y && (q.x > p.x || q.y > p.y));
  const front = points.filter((p) => !isBeaten(p)).sort((a, b) => a.x - b.x);
  const bases = new Map();
  for (const p of points) {
    const x = hook.evaluations[p.name].metrics[hook.psnr].base, y = hook.evaluations[p.name].metrics[key].base;
    bases.set(`${x} ${y}`, { x, y });
  }
  const traces = points.map((p, place) => ({
    type: "scatter", mode: "markers+text", name: p.name, x: [p.x], y: [p.y * scale], text: [p.name], textposition: place % 2 ? "bottom center" : "top center", cliponaxis: false,
    marker: { size: 11, color: colourOf(p.name) }, showlegend: false, hovertemplate: "PSNR %{x:.2f} dB, %{y:.1f}<extra>%{fullData.name}</extra>",
  }));
  traces.unshift({ type: "scatter", mode: "lines", name: "Pareto front", x: front.map((p) => p.x), y: front.map((p) => p.y * scale), line: { color: "#9aa4ad", dash: "dot" }, hoverinfo: "skip" });
  const base = [...bases.values()];
  traces.push({ type: "scatter", mode: "markers", name: "base", x: base.map((p) => p.x), y: base.map((p) => p.y * scale), marker: { symbol: "x", size: 11, color: "#333" } });
  if (hook.published.length) {
    const value = (row) => (now.law ? row.by_law[now.law] : row.accuracy);
    const rows = hook.published.filter((row) => value(row) != null);
    traces.push({ type: "scatter", mode: "markers+text", name: "paper", x: rows.map((row) => row.psnr_db), y: rows.map((row) => value(row) * scale), text: rows.map((row) => row.model), textposition: "bottom center", marker: { symbol: "diamond", size: 10, color: "#777" } });
  }
  return [traces, layoutOf({ height: 380, margin: { l: 60, r: 40, t: 28, b: 45 }, xaxis: { title: { text: titled(hook.psnr, "dB") } }, yaxis: { title: { text: titled(key, unitOf(key)) } } })];
}

function curvePlot(section, hook, now) {
  const select = section.querySelector("select.curve");
  const key = hook && select.value === hook.headline ? headlineOf(hook, now) : select.value;
  const scale = scaleOf(key);
  const traces = DATA.runs.filter((run) => now.runs.has(run.name) && run.curves[key]).map((run) => ({
    type: "scatter", mode: run.curves[key].length > 30 ? "lines" : "lines+markers", name: run.name,
    x: run.curves[key].map((p) => p[0]), y: run.curves[key].map((p) => p[1] * scale), line: { color: colourOf(run.name), dash: dashOf(run.name) },
  }));
  return [traces, layoutOf({ height: 360, xaxis: { title: { text: "step" } }, yaxis: { title: { text: titled(key, unitOf(key)) } } })];
}

// Axes between 0 and 1: numbers by their range (by its logarithm over more than a factor of 20), other values in order.
function axisOf(label, values) {
  const known = values.filter((value) => value != null);
  if (known.length && known.every((value) => typeof value === "number")) {
    const low = Math.min(...known), high = Math.max(...known);
    const bend = low > 0 && high / low > 20 ? Math.log10 : (value) => value;
    const at = (value) => (value == null ? null : high === low ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low)));
    return { label, at, ticks: [...new Set([low, high])].map((value) => ({ value: Number(value.toPrecision(4)), at: at(value) })) };
  }
  const said = (value) => (String(value).startsWith("physedit.") ? String(value).split(".").pop() : String(value));
  const words = [...new Set(values.map(said))].sort();
  const at = (value) => (words.length === 1 ? 0.5 : words.indexOf(said(value)) / (words.length - 1));
  return { label, at, ticks: words.map((value) => ({ value: value.slice(0, 24), at: at(value) })) };
}

function parallelPlot(hook, now) {
  const shown = shownRuns(hook, now);
  const runOf = (name) => DATA.runs[names.indexOf(name)];
  const results = [headlineOf(hook, now), hook.psnr].filter(Boolean);
  const columns = DATA.differing.slice(0, MOST_AXES).map((key) => [key, (name) => runOf(name).settings[key]]);
  columns.push(...results.map((key) => [titled(key, unitOf(key)), (name) => { const v = hook.evaluations[name].metrics[key]?.tuned; return v == null ? null : v * scaleOf(key); }]));
  const axes = columns.map(([label, get]) => ({ get, ...axisOf(label, shown.map(get)) }));
  const traces = shown.map((name) => ({
    type: "scatter", mode: "lines+markers", name, x: axes.map((_, i) => i), y: axes.map((axis) => axis.at(axis.get(name))),
    line: { color: colourOf(name), dash: dashOf(name), width: 2.5 }, text: axes.map((axis) => `${axis.label}: ${axis.get(name)}`), hovertemplate: "%{text}<extra>%{fullData.name}</extra>",
  }));
  const annotations = axes.flatMap((axis, i) => axis.ticks.map((tick) => ({ x: i, y: tick.at, text: String(tick.value), showarrow: false, xshift: 6, xanchor: "left", font: { size: 11, color: "#5b6670" }, bgcolor: "rgba(255,255,255,0.75)" })));
  const shapes = axes.map((_, i) => ({ type: "line", x0: i, x1: i, y0: -0.03, y1: 1.03, line: { color: "#9aa4ad", width: 1 }, layer: "below" }));
  return [traces, layoutOf({ height: 380, annotations, shapes, margin: { l: 30, r: 60, t: 12, b: 100 }, legend: { orientation: "h", y: -0.5 }, yaxis: { visible: false, range: [-0.08, 1.08] }, xaxis: { tickangle: 20, tickvals: axes.map((_, i) => i), ticktext: axes.map((axis) => axis.label), showgrid: false, zeroline: false, range: [-0.15, axes.length - 0.6] } })];
}

const PLOTS = {
  change: (section, hook, now) => changePlot(hook, headlineOf(hook, now), now),
  "change-psnr": (section, hook, now) => changePlot(hook, hook.psnr, now),
  laws: (section, hook, now) => lawsPlot(hook, now),
  pareto: (section, hook, now) => paretoPlot(hook, now),
  curve: curvePlot,
  parallel: (section, hook, now) => parallelPlot(hook, now),
};

function filterPictures(section, now) {
  let shown = 0;
  const items = [...section.querySelectorAll(".item")];
  for (const item of items) {
    const figures = [...item.querySelectorAll("figure[data-run]")];
    for (const figure of figures) figure.hidden = !now.runs.has(figure.dataset.run);
    const hasFlip = !now.flip || figures.some((figure) => !figure.hidden && figure.dataset.flip === now.flip);
    item.hidden = (now.law && item.dataset.law !== now.law) || !hasFlip;
    shown += item.hidden ? 0 : 1;
  }
  const said = section.querySelector(".shown");
  if (said) said.textContent = `${shown} of ${items.length} items shown.`;
}

function filterTables(now) {
  for (const row of document.querySelectorAll("table.runs tr[data-run]")) row.hidden = !now.runs.has(row.dataset.run);
  for (const row of document.querySelectorAll("table.tests tr[data-first]")) row.hidden = !(now.runs.has(row.dataset.first) && now.runs.has(row.dataset.second));
}

async function draw() {
  const now = state();
  filterTables(now);
  const drawn = [];
  for (const section of document.querySelectorAll("section[data-hook]")) {
    const hook = DATA.hooks[section.dataset.hook];
    filterPictures(section, now);
    for (const place of section.querySelectorAll("[data-plot]")) {
      const [traces, layout] = PLOTS[place.dataset.plot](section, hook, now);
      drawn.push(Plotly.react(place, traces, layout, PLAIN));
    }
  }
  await Promise.all(drawn);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function offerCurves() {
  for (const section of document.querySelectorAll("section[data-hook]")) {
    const hook = DATA.hooks[section.dataset.hook];
    const logged = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.curves)))];
    const training = logged.filter((key) => key.startsWith("train/"));
    const keys = hook ? [...hook.overall, ...Object.values(hook.laws), ...training].filter((key) => logged.includes(key)) : training;
    section.querySelector("select.curve").replaceChildren(...keys.map((key) => new Option(key, key)));
    section.querySelector("select.curve").addEventListener("change", draw);
  }
}

offerCurves();
for (const control of document.querySelectorAll(".filters select, .filters input")) control.addEventListener("change", draw);
draw();
