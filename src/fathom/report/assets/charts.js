"use strict";
// The charts of some runs. Names come from strangers: they go into textContent, or through `plain`.

const CHARTS = {
  accuracy: [
    { y: "accuracy", x: "round", title: "Against rounds", told: "how often clients were asked" },
    { y: "accuracy", x: "gradients", title: "Against local gradients", told: "how much clients computed: gradients of one example each" },
    { y: "accuracy", x: "bytes", title: "Against bytes", told: "what the clients sent and received" },
  ],
  hparams: [
    { y: "lr", x: "round", title: "Client learning rate", told: "" },
    { y: "epochs", x: "round", title: "Local epochs E", told: "passes over a client's data" },
    { y: "batch", x: "round", title: "Batch size B", told: "examples per local step" },
    { y: "steps", x: "round", title: "Local steps K", told: "mean over the clients that answered" },
  ],
  signals: [
    { y: "agreement", x: "round", title: "Agreement", told: "cosine of the update with past ones; above 0, FATHOM raises the learning rate" },
    { y: "alignment", x: "round", title: "Alignment", told: "least cosine along clients' paths; above 0, FATHOM shrinks the batch" },
    { y: "gain", x: "round", title: "Gain", told: "what clients' last steps brought, over what they promised; near 1 steps are too short, near 0 too long" },
  ],
  clients: [
    { y: "loss", title: "Training loss of a client", told: "" },
    { y: "steps", title: "Local steps of a client", told: "" },
    { y: "examples", title: "Examples of a client", told: "" },
  ],
};
const AXES = {
  round: { title: "round" },
  gradients: { title: "local gradients so far", tickformat: "~s" },
  bytes: { title: "bytes so far, up and down", tickformat: "~s", ticksuffix: "B" },
};
const touch = matchMedia("(pointer: coarse)").matches;
const CONFIG = { responsive: true, displayModeBar: false, showTips: false };
const FONT = { family: 'system-ui, "DejaVu Sans", sans-serif', size: 12, color: "#222" };

const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function alpha(colour, share) {
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${share})`;
}

// A run's line and the range of its trials, as traces.
function curve(run, chart) {
  const { curves } = run, series = curves[chart.y];
  const there = curves.round.map((_, i) => i).filter((i) => series.mean[i] !== null);
  const take = (values) => there.map((i) => values[i]);
  const x = take(curves[chart.x]), mean = take(series.mean), low = take(series.low), high = take(series.high);
  const form = chart.y === "accuracy" ? ".1%" : ".4~g";
  const spread = run.trials > 1 ? ` (%{customdata[0]:${form}} to %{customdata[1]:${form}})` : "";
  const line = {
    x, y: mean, name: plain(run.name), mode: x.length < 3 ? "lines+markers" : "lines",
    line: { color: run.colour, width: 2, dash: run.dash }, marker: { color: run.colour, size: 7 },
    customdata: there.map((i) => [series.low[i], series.high[i]]),
    hovertemplate: `%{y:${form}}${spread}<extra>${plain(run.name)}</extra>`,
  };
  const traces = [line];
  if (run.trials > 1) {
    traces.unshift({ x: [...x, ...x.slice().reverse()], y: [...high, ...low.reverse()], fill: "toself", mode: "lines",
      line: { width: 0 }, fillcolor: alpha(run.colour, 0.18), hoverinfo: "skip" });
  }
  if (chart.y === "lr" && run.undone.length) {
    traces.push({ x: run.undone.map((u) => u[0]), y: run.undone.map((u) => u[1]), mode: "markers", hovertemplate: "round %{x} was undone<extra></extra>",
      marker: { symbol: "x", size: 8, color: run.colour } });
  }
  return traces;
}

// A run's histogram: bars, or an outline where there are more than three runs.
function bars(run, place, chart, clients, crowd) {
  const { edges, shares, counts } = clients[chart.y];
  const middles = edges.slice(1).map((edge, i) => (edge + edges[i]) / 2);
  const whole = chart.y !== "loss";
  const range = middles.map((_, i) => {
    if (!whole) return `${edges[i].toPrecision(3)} to ${edges[i + 1].toPrecision(3)}`;
    const [first, last] = [edges[i] + 0.5, edges[i + 1] - 0.5];
    return first === last ? `${first}` : `${first} to ${last}`;
  });
  if (crowd) {
    return { x: [edges[0], ...middles, edges[edges.length - 1]], y: [shares[place][0], ...shares[place], shares[place][shares[place].length - 1]],
      customdata: [range[0], ...range, range[range.length - 1]], mode: "lines", line: { shape: "hvh", color: run.colour, width: 2, dash: run.dash },
      hovertemplate: `%{customdata}: %{y:.0%} of ${counts[place]}<extra>${plain(run.name)}</extra>` };
  }
  return { type: "bar", x: middles, y: shares[place], customdata: range, marker: { color: run.colour },
    hovertemplate: `%{customdata}: %{y:.0%} of ${counts[place]}<extra>${plain(run.name)}</extra>` };
}

function axis(more) {
  return { gridcolor: "#e3e3e3", zerolinecolor: "#bbb", linecolor: "#888", ticks: "outside", tickcolor: "#bbb", automargin: true, ...more };
}

// Ticks with all their digits: 1, 2, 5, 10, 20, ... or only the powers of ten where there are many.
function logarithmic(low, high) {
  const tickvals = [], steps = high > 300 * low ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) tickvals.push(...steps.map((step) => +`${step}e${power}`));
  return { tickvals, ticktext: tickvals.map((value) => `${value}`) };
}

function layout(chart, runs) {
  const made = { font: FONT, margin: { l: 48, r: 14, t: 10, b: 40 }, showlegend: false, dragmode: touch ? false : "zoom",
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", hoverlabel: { namelength: 24, font: { size: 12 } }, uirevision: "kept" };
  if (!chart.x) {
    return { ...made, barmode: "group", bargap: 0.1, hovermode: "closest",
      xaxis: axis({ title: { text: { loss: "mean loss on its own path", steps: "steps in a round", examples: "examples" }[chart.y] } }),
      yaxis: axis({ tickformat: "~%", rangemode: "tozero", title: { text: "share of clients" } }) };
  }
  const { title, ...more } = AXES[chart.x];
  made.hovermode = chart.x === "round" ? "x unified" : "closest";
  made.xaxis = axis({ title: { text: title }, rangemode: "tozero", unifiedhovertitle: { text: "round %{x}" }, ...more });
  made.yaxis = axis({});
  const values = runs.flatMap((run) => [...run.curves[chart.y].low, ...run.curves[chart.y].high]).filter((v) => v !== null);
  const targets = [...new Set(runs.map((run) => run.target))];
  if (chart.y === "accuracy") {
    Object.assign(made.yaxis, { tickformat: "~%", range: [0, 1.08 * Math.max(...values, ...targets)] });
    made.shapes = targets.map((y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { width: 1, color: "#888" } }));
    made.annotations = targets.map((y) => ({ xref: "paper", x: 0.01, y, xanchor: "left", yanchor: "bottom", showarrow: false,
      text: `target ${+(100 * y).toPrecision(4)}%`, font: { size: 11, color: "#555" } }));
  } else if (chart.y === "agreement" || chart.y === "alignment" || chart.y === "gain") {
    const low = Math.min(0, ...values), high = Math.max(0, ...values), room = 0.06 * (high - low || 1);
    Object.assign(made.yaxis, { zerolinewidth: 2, range: [low - room, high + room] });
  } else {
    const above = values.filter((v) => v > 0), low = 0.85 * Math.min(...above), high = 1.15 * Math.max(...above);
    if (high > 15 * low) Object.assign(made.yaxis, { type: "log", range: [Math.log10(low), Math.log10(high)], ...logarithmic(low, high) });
    else if (above.length) made.yaxis.range = [low, high];
  }
  return made;
}

// Make a place for every chart, once.
function place() {
  for (const grid of document.querySelectorAll("[data-charts]")) {
    for (const chart of CHARTS[grid.dataset.charts]) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption"), told = document.createElement("span");
      caption.textContent = chart.title;
      told.textContent = chart.told || "\u00a0";
      caption.append(told);
      chart.box = document.createElement("div");
      chart.box.className = "chart";
      figure.append(caption, chart.box);
      grid.append(figure);
    }
  }
}

function draw(runs, clients, hidden) {
  for (const chart of Object.values(CHARTS).flat()) {
    if (!chart.box) continue;
    const asked = chart.y !== "gain" || runs.some((run) => run.curves.gain.mean.some((v) => v !== null)); // most tuners do not ask
    chart.box.parentElement.hidden = !asked;
    if (!asked) continue;
    const shown = runs.filter((run) => !hidden.has(run.name));
    const traces = chart.x ? shown.flatMap((run) => curve(run, chart)) : shown.map((run) => bars(run, runs.indexOf(run), chart, clients, shown.length > 3));
    Plotly.react(chart.box, traces, layout(chart, shown), CONFIG);
  }
}

// A box to tick, a line as in the charts, and the run's name.
function ticks(run, ticked, changed) {
  const label = document.createElement("label"), box = document.createElement("input");
  box.type = "checkbox";
  box.checked = ticked;
  box.addEventListener("change", () => changed(box.checked));
  label.append(box, swatch(run), document.createTextNode(run.name));
  return label;
}

function swatch(run) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const dashes = { solid: "", dash: "8 4", dot: "2 4", dashdot: "8 3 2 3", longdash: "14 4" };
  for (const [key, value] of Object.entries({ width: 34, height: 8, "aria-hidden": "true" })) svg.setAttribute(key, value);
  for (const [key, value] of Object.entries({ x1: 0, x2: 34, y1: 4, y2: 4, stroke: run.colour, "stroke-width": 3, "stroke-dasharray": dashes[run.dash] })) line.setAttribute(key, value);
  svg.append(line);
  return svg;
}

// Paper is narrower than a screen: charts take the size that style.css gives them there.
function printable() {
  const resize = (size) => {
    for (const chart of Object.values(CHARTS).flat()) if (chart.box?._fullLayout) Plotly.relayout(chart.box, size);
  };
  addEventListener("beforeprint", () => resize({ width: 335, height: 215, autosize: false }));
  addEventListener("afterprint", () => resize({ width: null, height: null, autosize: true }));
}

function report() {
  const { runs, clients } = JSON.parse(document.getElementById("data").textContent), hidden = new Set();
  for (const run of runs) {
    document.getElementById("runs").append(ticks(run, true, (on) => {
      if (on) hidden.delete(run.name);
      else hidden.add(run.name);
      draw(runs, clients, hidden);
    }));
  }
  place();
  draw(runs, clients, hidden);
  printable();
}
