"use strict";
// The list of runs and their charts, growing. Names come from strangers: they go into textContent only.

const MOST = 12; // runs at once, as in live.py
const LABELS = ["", "accuracy", "lr", "E", "B", ""];
const shown = new Map(); // runs that are ticked -> how they are drawn
const seen = new Set(); // runs that were in the list before
let list = [], source = null, placed = false, waiting = null, timer = 0, rest = 0;

const told = (text) => { document.getElementById("status").textContent = text; };

function time(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function progress(run) {
  if (run.state === "unreadable") return run.told;
  const place = `round ${run.round.toLocaleString("en")} of ${run.rounds.toLocaleString("en")}`;
  if (run.state !== "running") return `${run.state}, ${place}`;
  const silent = Date.now() / 1000 - run.changed;
  if (silent > 120) return `${place}, no news for ${time(silent)}; was it killed?`;
  if (run.left === null) return `${place}, nothing recorded yet`;
  return `${place}, about ${time(run.left)} left`;
}

function cells(run) {
  const number = (value, digits) => (value === null || value === undefined ? "-" : `${+value.toPrecision(digits)}`);
  const h = run.hparams || {};
  const accuracy = run.accuracy === null || run.accuracy === undefined ? "-" : `${(100 * run.accuracy).toFixed(1)}%`;
  const trouble = [run.undone && `rounds undone: ${run.undone}`, run.rejected && `updates set aside: ${run.rejected}`,
    run.damaged && `line ${run.damaged} of its records is damaged`].filter(Boolean);
  const doing = [progress(run), ...trouble].join("; ");
  return [doing, accuracy, number(h.lr, 3), number(h.epochs, 3), number(h.batch, 3), run.task ? `${run.task}, ${run.tuner}` : "-"];
}

function show() {
  const body = document.querySelector("#list tbody"), focus = document.activeElement?.dataset?.run;
  body.replaceChildren(...list.map((run) => {
    const line = document.createElement("tr"), head = document.createElement("th");
    head.scope = "row";
    const style = shown.get(run.name) || { colour: "#ffffff", dash: "solid" };
    const tick = ticks({ name: run.name, ...style }, shown.has(run.name), (on) => choose(run.name, on));
    const box = tick.querySelector("input");
    box.dataset.run = run.name;
    box.disabled = run.state === "unreadable" || (!shown.has(run.name) && shown.size >= MOST);
    head.append(tick);
    line.append(head, ...cells(run).map((text, i) => {
      const cell = document.createElement("td");
      cell.textContent = text;
      cell.dataset.label = LABELS[i];
      if (i === 0 && run.rounds) {
        const bar = document.createElement("progress");
        bar.max = run.rounds;
        bar.value = run.round;
        bar.setAttribute("aria-label", "rounds done");
        cell.prepend(bar);
      }
      return cell;
    }));
    return line;
  }));
  if (focus) [...body.querySelectorAll("input")].find((box) => box.dataset.run === focus)?.focus();
  const going = list.filter((run) => run.state === "running").length;
  told(list.length ? `${list.length} ${list.length === 1 ? "run" : "runs"}, ${going} going on; tick those to compare.` : "No runs yet; this page shows them once they begin.");
}

function choose(name, on) {
  if (on) shown.set(name, null);
  else shown.delete(name);
  clearTimeout(timer);
  timer = rest = 0;
  connect();
}

// Runs that begin while we look are shown by themselves; at first, those that go on, or else the last that changed.
function greet() {
  const fresh = list.filter((run) => !seen.has(run.name) && run.state !== "unreadable");
  let wanted = fresh.filter((run) => run.state === "running");
  if (!seen.size && !wanted.length) wanted = [...fresh].sort((a, b) => b.changed - a.changed).slice(0, 2);
  for (const run of fresh) seen.add(run.name);
  const gone = [...shown.keys()].filter((name) => !list.some((run) => run.name === name));
  for (const name of gone) shown.delete(name);
  wanted = wanted.slice(0, Math.max(0, MOST - shown.size));
  for (const run of wanted) shown.set(run.name, null);
  if (wanted.length || gone.length) connect();
}

// Draw what came last, and then rest for twice as long as that took: a fast run does not stall the page.
function paint() {
  const { runs, clients } = waiting, start = performance.now();
  timer = 0;
  for (const run of runs) if (shown.has(run.name)) shown.set(run.name, { colour: run.colour, dash: run.dash });
  const some = runs.some((run) => run.curves.round.length);
  document.getElementById("charts").hidden = !some;
  if (some) {
    if (!placed) place();
    placed = true;
    draw(runs, clients, new Set());
  }
  show();
  rest = Math.min(5000, 2 * (performance.now() - start));
}

function connect() {
  source?.close();
  const asked = [...shown.keys()].map((name) => `run=${encodeURIComponent(name)}`).join("&");
  source = new EventSource(`/events?${asked}`);
  source.addEventListener("runs", (event) => {
    list = JSON.parse(event.data);
    show();
    greet();
  });
  source.addEventListener("charts", (event) => {
    waiting = JSON.parse(event.data);
    timer ||= setTimeout(paint, rest);
  });
  source.onerror = () => told("The connection is lost; is fathom watch still running? Trying again ...");
}

setInterval(show, 10000);
printable();
connect();
