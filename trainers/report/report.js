"use strict";
// Fills the page from the data in it.

let DATA = JSON.parse(document.getElementById("data").textContent);
const MAIN = ["train/kl", "train/approx_kl", "train/lr", "train/return", "train/valid_actions", "train/episode_length", "train/entropy",
  "train/loss", "train/grad_norm", "train/clip_fraction"];

function setting(name) {
  const found = DATA.settings.find(([key]) => key === name);
  return found ? found[1] : null;
}

function table(heads, rows, caption) {
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr", row.total ? { class: "total" } : {});
    for (const [place, cell] of row.cells.entries()) {
      const text = String(cell.text ?? cell);
      const parts = cell.class === "interval" ? text.split(" [").map((part, i) => make("span", {}, i ? ` [${part}` : part)) : [text];
      line.append(make("td", { class: cell.class, "data-head": heads && heads[place] }, ...parts));
    }
    body.append(line);
  }
  return make("table", {}, caption ? make("caption", {}, caption) : null,
    heads ? make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))) : null, body);
}

function header() {
  const model = setting("model.path"), recipe = setting("recipe") || setting("method.estimator"), seed = setting("seed");
  document.getElementById("subtitle").textContent = [recipe && `recipe ${recipe}`, model && `model ${model}`, seed !== null && `seed ${seed}`].filter(Boolean).join(" · ");
  if (typeof Live === "undefined") document.getElementById("state").textContent = DATA.state;
  const facts = [];
  for (const pair of DATA.comparisons) {
    const before = pair.before.strata[0], after = pair.after.strata[0];
    facts.push([`success on ${pair.title}`, `${percent(before.success)} → ${percent(after.success)}`, `n = ${after.n}`]);
  }
  const curve = DATA.metrics["train/success"], window = curve ? windowOf(curve.y.length) : 1;
  if (curve && curve.x.length) {
    const mean = window > 1 ? `; mean of the last ${window}: ${percent(movingMean(curve.y, window).at(-1))}` : "";
    facts.push(["success in training, other tasks each iteration", percent(curve.y.at(-1)), `last iteration${mean}`]);
  }
  for (const [metric, label, unit] of [["train/kl", "KL from the reference", "nats a token"], ["train/approx_kl", "KL of the last update", "nats a token"],
    ["train/lr", "learning rate", ""]]) {
    const found = DATA.metrics[metric];
    if (found && found.x.length) facts.push([label, short(found.y.at(-1)), unit]);
  }
  facts.push(["episodes here", short(DATA.files.reduce((sum, file) => sum + file.episodes, 0)), ""]);
  const list = document.getElementById("facts");
  list.replaceChildren();
  for (const [name, value, rest] of facts) list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value, " ", make("small", {}, rest || ""))));
}

// What happened besides training: alarms, and what was done about them.
function events() {
  const section = document.getElementById("events"), rows = DATA.events.map((cells) => ({ cells: cells.map((cell) => visible(String(cell))) }));
  section.hidden = !rows.length;
  section.querySelector("div").replaceChildren(table(["iteration", "time", "event", "what"], rows));
}

function results() {
  const place = document.getElementById("comparisons");
  place.replaceChildren();
  for (const pair of DATA.comparisons) {
    const rows = pair.rows.map(([name, n, before, after, change]) => ({
      total: name === "all",
      cells: [name, n, { text: before, class: "interval" }, { text: after, class: "interval" }, { text: change, class: change.endsWith("*") ? (change.startsWith("+") ? "up" : "down") : "" }],
    }));
    const names = pair.rows.map((row) => row[0]);
    const bars = barChart([{ ...pair.before, color: "var(--grey)" }, { ...pair.after, color: "var(--blue)" }], names);
    place.append(make("div", { class: "card" }, make("h3", {}, `Success on ${pair.title}`), make("div", { class: "comparison" },
      make("div", { class: "scroll" }, table(["tasks", "n", `${pair.before.name}, %`, `${pair.after.name}, %`, "change"], rows, `${DATA.note}.`)), bars)));
  }
  if (!DATA.comparisons.length) place.append(make("p", { class: "empty" }, "No two evaluations to compare yet."));
  const all = document.getElementById("all-evaluations");
  all.hidden = !DATA.evaluations.length;
  if (!all.dataset.drawn) all.open = !DATA.comparisons.length;
  all.dataset.drawn = "yes";
  const rows = DATA.evaluations.flatMap((result) => result.strata.map((one) => ({ total: false, cells: [
    result.name, `${result.env_id} ${result.split}`, one.stratum, one.n, one.successes, percent(one.success), `${percent(one.low)} to ${percent(one.high)}`,
    short(one.mean_score), short(one.mean_steps), result.failed, result.temperature, result.policy_version, duration(result.wall_s), result.manifest_hash.slice(0, 8)] })));
  all.querySelector(".scroll").replaceChildren(table(["evaluation", "tasks", "type", "n", "solved", "success", "95 % interval", "score", "steps", "failed",
    "temperature", "policy version", "time", "manifest"], rows));
}

function curve(name) {
  const { x, y } = DATA.metrics[name], points = name.startsWith("eval/"), window = points || name === "train/lr" ? 1 : windowOf(y.length);
  const lines = [{ label: "value", x, y, points, color: "var(--blue)", opacity: window > 1 ? 0.35 : 1, width: window > 1 ? 1 : 2 }];
  if (window > 1) lines.push({ label: `mean of ${window}`, x, y: movingMean(y, window), color: "var(--blue)" });
  return lineChart({ title: name, description: DATA.descriptions[name], lines, legend: false, share: DATA.shares.includes(name) });
}

function curves() {
  const success = DATA.metrics["train/success"], lines = [];
  const window = success ? windowOf(success.y.length) : 1;
  document.getElementById("smoothing").textContent = window > 1 ? `Faint: each iteration. Strong: mean of the last ${window}. ` : "";
  if (success && success.x.length) {
    lines.push({ label: "training", x: success.x, y: success.y, color: "var(--blue)", opacity: window > 1 ? 0.35 : 1, width: window > 1 ? 1 : 2.5 });
    if (window > 1) lines.push({ label: `training, mean of ${window}`, x: success.x, y: movingMean(success.y, window), color: "var(--blue)", width: 2.5 });
  }
  const points = DATA.evaluation_points;
  if (points.length) {
    const column = (i) => points.map((point) => point[i]);
    if (points[0][0] === 0 && lines.length) lines.push({ label: "base model", x: [0, Math.max(...success.x, ...column(0))], y: [points[0][1], points[0][1]], color: "var(--grey)", dash: "5 4", width: 1.5 });
    lines.push({ label: "held-out tasks, 95 % interval", x: column(0), y: column(1), low: column(2), high: column(3), color: "var(--orange)", points: true });
  }
  const place = document.getElementById("main-curves"), drawn = [];
  if (lines.length) drawn.push(lineChart({ title: "Success", description: "Each iteration draws other tasks for training; the held-out tasks are always the same.", lines, share: true, height: 280, wide: true }));
  else drawn.push(make("p", { class: "empty" }, "No metrics yet."));
  const names = Object.keys(DATA.metrics).filter((name) => DATA.metrics[name].x.length && name !== "train/success");
  place.replaceChildren(...drawn, ...MAIN.filter((one) => names.includes(one)).map(curve));
  const more = document.getElementById("more-curves"), rest = names.filter((name) => !MAIN.includes(name));
  more.hidden = !rest.length;
  const fill = () => more.open && more.querySelector(".grid").replaceChildren(...rest.map(curve));
  more.ontoggle = fill;
  fill();
}

function times() {
  const place = document.getElementById("times");
  place.replaceChildren();
  const total = DATA.times.reduce((sum, [, s]) => sum + s, 0);
  if (!total) { place.append(make("p", { class: "empty" }, "No times recorded yet.")); return; }
  const rows = DATA.times.map(([label, s]) => make("tr", {}, make("td", {}, phaseKey(label)), make("td", {}, duration(s)), make("td", {}, percent(s / total))));
  const within = columns(DATA.times.map(([label]) => label));
  place.append(make("div", { class: "card" }, phaseStack(DATA.times), within, make("table", { class: "narrow" }, make("tbody", {}, ...rows,
    make("tr", { class: "total" }, make("td", {}, "all"), make("td", {}, duration(total)), make("td", {}, ""))))));
}

// One column for each iteration, or each run of them where there are many: the shares of its parts.
function columns(names) {
  const total = DATA.metrics["time/total"];
  if (!total || total.x.length < 2) return null;
  const values = names.map((name) => {
    const { x, y } = DATA.metrics[DATA.time_parts[name]] || { x: [], y: [] };
    return new Map(x.map((iteration, i) => [iteration, Math.max(0, y[i])]));
  });
  const width = Math.ceil(total.x.length / 60), place = make("div", { class: "columns", role: "img", "aria-label": "Shares of each iteration" });
  for (let start = 0; start < total.x.length; start += width) {
    const iterations = total.x.slice(start, start + width);
    const seconds = values.map((value) => iterations.reduce((sum, iteration) => sum + (value.get(iteration) || 0), 0));
    const all = seconds.reduce((sum, s) => sum + s, 0) || 1;
    const label = iterations.length > 1 ? `iterations ${iterations[0]} to ${iterations.at(-1)}` : `iteration ${iterations[0]}`;
    place.append(make("div", {}, ...seconds.map((s, i) => make("i", { style: `flex:${s / all} 0 0;background:${DATA.phase_colours[names[i]]}`, title: `${label}: ${names[i]} ${percent(s / all)}` }))));
  }
  return place;
}

async function episodes() {
  const some = DATA.files.length > 0;
  document.getElementById("filters").hidden = !some;
  document.getElementById("browser").hidden = !some;
  document.getElementById("no-episodes").hidden = some;
  if (!some) return null;
  const browser = window.BROWSER = new Browser(DATA);
  const differing = DATA.files.findLastIndex((file) => file.differing);
  if (!(await browser.follow())) await browser.open(String(differing < 0 ? DATA.files.length - 1 : differing));
  browser.ready = true;
  return browser;
}

function draw() {
  header();
  events();
  results();
  curves();
  times();
  document.getElementById("config-text").textContent = visible(DATA.config);
  document.getElementById("summary").replaceChildren(table(null, DATA.summary.map((cells) => ({ cells }))));
}

if (typeof Live === "undefined") {
  draw();
  episodes();
} else new Live().start();
