"use strict";
// Fills the page that compares runs from the data in it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const COLOURS = ["var(--c0)", "var(--c5)", "var(--c2)", "var(--c3)", "var(--c1)", "var(--c4)", "var(--c6)"];
const colourOf = (run) => COLOURS[run % COLOURS.length];
const MOST = 500;
const MAIN = ["train/success", "train/return", "train/valid_actions", "train/episode_length", "train/response_length", "train/entropy", "train/kl", "train/grad_norm"];
const $ = (id) => document.getElementById(id);

function named(run) { return make("span", {}, make("i", { style: `background:${colourOf(run)}` }), visible(DATA.names[run])); }

function grid(heads, rows, caption) {
  return make("table", {}, caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col", class: "key" }, head)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", { class: cells[0] === "all" ? "total" : null }, ...cells.map((cell) => make("td", {}, cell))))));
}

function results() {
  $("subtitle").append(...DATA.names.map((_, run) => named(run)));
  for (const text of DATA.warnings) $("warnings").append(make("p", { class: "card problem", role: "alert" }, visible(text)));
  for (const table of DATA.tables) {
    const rows = table.rows.map(([name, n, ...cells]) => [visible(name), String(n), ...cells]);
    const heads = ["tasks", "n", ...table.runs.map((run, i) => make("span", { title: table.evaluations[i] }, named(run), ", %"))];
    const card = make("div", { class: "card" }, make("h3", {}, visible(table.title)));
    const place = make("div", { class: table.runs.length === 2 ? "comparison" : "" }), note = `95 % Wilson intervals, clustered by task where tasks are repeated; ${table.note}.`;
    place.append(make("div", { class: "scroll" }, grid(heads, rows, note)));
    card.append(place);
    if (table.runs.length < 2) card.append(make("p", { class: "hint" }, "No other run was evaluated under these conditions."));
    else place.append(barChart(table.results.map((result, i) => ({ ...result, name: visible(DATA.names[table.runs[i]]), color: colourOf(table.runs[i]) })), table.rows.map((row) => row[0])));
    for (const pair of table.pairs) card.append(paired(pair, table.pairs.length));
    $("tables").append(card);
  }
  if (!DATA.tables.length) $("tables").append(make("p", { class: "empty" }, "No run has an evaluation yet."));
}

function paired(pair, pairs) {
  const title = make("b", {}, visible(`${pair.first} and ${pair.second}`));
  if (pair.problem) return make("p", { class: "hint" }, title, `: no paired comparison, since ${visible(pair.problem)}.`);
  if (!pair.tasks) return make("p", { class: "hint" }, title, ": no task was played by both.");
  const points = (share) => `${share > 0 ? "+" : ""}${(100 * share).toFixed(1)}`, alone = pairs > 1 ? `, not corrected for ${pairs} comparisons` : "";
  return make("p", { class: "paired" }, title, ` on the same ${pair.tasks} tasks: the first is better on ${pair.first_better}, the second on ${pair.second_better}, `,
    `both are alike on ${pair.tasks - pair.first_better - pair.second_better}. Success of the second minus the first: `, make("b", {}, `${points(pair.difference)} points`),
    ` [${pair.interval.map(points).join(", ")}], p ${pair.p < 0.001 ? "< 0.001" : `= ${pair.p.toFixed(3)}`} (95 % interval, permutation test by task${alone}).`,
    pair.unpaired ? ` ${pair.unpaired} tasks have an episode of one of them only, and are left out.` : "");
}

function curve(name) {
  const series = DATA.metrics[name], longest = Math.max(...series.map(({ y }) => y.length));
  const points = name.startsWith("eval/"), window = points || name === "train/lr" ? 1 : windowOf(longest), mean = window > 1 ? `, mean of ${window}:` : "";
  const lines = series.map(({ x, y }, run) => ({ label: `${visible(DATA.names[run])}${mean}`, x, y: movingMean(y, window), points, color: colourOf(run) }))
    .filter((line) => line.x.length);
  return lineChart({ title: name, description: DATA.descriptions[name], lines, legend: false, share: DATA.shares.includes(name) });
}

function curves() {
  const lines = DATA.evaluation_points.map((points, run) => {
    const column = (i) => points.map((point) => point[i]);
    return { label: visible(DATA.names[run]), x: column(0), y: column(1), low: column(2), high: column(3), color: colourOf(run), points: true };
  }).filter((line) => line.x.length);
  const place = $("main-curves");
  if (lines.length) {
    const title = DATA.warnings.length ? "Success in evaluation (see above for what is not comparable)" : "Success in evaluation";
    place.append(lineChart({ title, description: "Held-out tasks, 95 % intervals.", lines, share: true, height: 260, wide: true }));
  }
  const names = Object.keys(DATA.metrics).filter((name) => DATA.metrics[name].some(({ x }) => x.length));
  const longest = Math.max(0, ...names.flatMap((name) => DATA.metrics[name].map(({ x }) => x.length)));
  if (longest >= 8) $("smoothing").textContent = `Means of the last ${windowOf(longest)} iterations. `;
  for (const name of MAIN.filter((one) => names.includes(one))) place.append(curve(name));
  if (!names.length) place.append(make("p", { class: "empty" }, "No metrics yet."));
  const more = $("more-curves"), rest = names.filter((name) => !MAIN.includes(name));
  more.hidden = !rest.length;
  more.addEventListener("toggle", () => more.querySelector(".grid").append(...rest.map(curve)), { once: true });
}

function times() {
  const phases = [...new Set(DATA.times.flatMap((one) => Object.keys(one.phases)))];
  const total = (one) => Object.values(one.phases).reduce((a, b) => a + b, 0);
  const seconds = (one, phase) => {
    const s = one.phases[phase];
    return s === undefined ? "–" : `${duration(s)} (${percent(s / total(one))})`;
  };
  const rows = [
    ["iterations", ...DATA.times.map((one) => short(one.iterations))],
    ["wall time", ...DATA.times.map((one) => (one.wall_s === null || one.wall_s === undefined ? "–" : duration(one.wall_s)))],
    ...phases.map((phase) => [phaseKey(phase), ...DATA.times.map((one) => seconds(one, phase))]),
    ["tokens sampled", ...DATA.times.map((one) => short(one.sampled))],
    ["tokens trained on", ...DATA.times.map((one) => short(one.trained))],
    ["tokens per second of rollout", ...DATA.times.map((one) => short(one.rate))],
  ];
  DATA.times.forEach((one, run) => total(one) && $("times").append(make("div", { class: "legend" }, named(run)), phaseStack(Object.entries(one.phases))));
  $("times").append(grid(["phase", ...DATA.names.map((_, run) => named(run))], rows));
  $("differences").append(DATA.settings.length ? grid(["setting", ...DATA.names.map((_, run) => named(run))],
    DATA.settings.map(([key, values]) => [make("code", {}, key), ...values.map((value) => make("code", {}, visible(value)))])) : make("p", { class: "empty" }, "None."));
}

// The same task in several runs.
class Tasks {
  constructor() {
    this.store = new Store(DATA);
    this.tables = DATA.tables.map((table, i) => ({ ...table, number: i })).filter((table) => table.tasks.length);
    if (!this.tables.length) {
      $("tasks").replaceChildren($("tasks-title"), make("p", { class: "empty" }, "No run has saved the episodes of an evaluation."));
      return;
    }
    $("panel").append(...this.tables.map((table, i) => make("option", { value: i }, visible(`${table.title}: ${table.runs.map((run) => DATA.names[run]).join(", ")}`))));
    const best = this.tables.findIndex((table) => table.runs.length > 1);
    $("panel").value = String(Math.max(0, best));
    $("panel").addEventListener("input", () => this.open());
    for (const id of ["outcome", "family"]) $(id).addEventListener("input", () => this.list());
    $("filters").addEventListener("submit", (event) => event.preventDefault());
    $("task-list").addEventListener("keydown", (event) => this.key(event));
    this.open();
  }

  open() {
    this.table = this.tables[Number($("panel").value)];
    const families = [...new Set(this.table.tasks.map((task) => task.family))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    $("family").replaceChildren(make("option", { value: "" }, "all"), ...families.map((one) => make("option", { value: one }, visible(one))));
    $("outcome").value = this.table.runs.length > 1 ? "differ" : "";
    this.list();
  }

  rate(cell) { return cell ? cell[1] / cell[0].length : null; }

  list() {
    const outcome = $("outcome").value, family = $("family").value;
    const fits = ({ cells }) => {
      const rates = cells.map((cell) => this.rate(cell)).filter((rate) => rate !== null);
      if (outcome === "differ") return new Set(rates).size > 1;
      if (outcome === "none") return rates.every((rate) => rate === 0);
      return outcome !== "every" || (rates.length === cells.length && rates.every((rate) => rate === 1));
    };
    this.tasks = this.table.tasks.filter((task) => (!family || task.family === family) && fits(task));
    const more = this.tasks.length > MOST ? `, the first ${MOST} are listed` : "";
    $("count").textContent = `${this.tasks.length} of ${this.table.tasks.length} tasks${more}`;
    this.rows = this.tasks.slice(0, MOST).map((task, i) => make("tr", { on: { click: () => this.show(i) } },
      make("td", {}, make("button", { type: "button", class: "plain" }, visible(task.task))),
      ...task.cells.map((cell) => make("td", { class: cell && cell[1] ? "solved" : "unsolved" }, this.cell(cell)))));
    $("task-list").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "task"),
      ...this.table.runs.map((run) => make("th", { scope: "col", class: "key", title: visible(DATA.names[run]) }, make("i", { style: `background:${colourOf(run)}` }), String(run + 1))))), make("tbody", {}, ...this.rows)));
    if (this.tasks.length) this.show(0, false);
    else $("sides").replaceChildren(make("p", { class: "empty" }, "No task fits."));
  }

  cell(cell) {
    if (!cell) return "–";
    const [episodes, solved, steps] = cell;
    return episodes.length > 1 ? `${solved}/${episodes.length}` : `${solved ? "✓" : "✗"} ${steps}`;
  }

  key(event) {
    const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!move || this.at + move < 0 || this.at + move >= this.rows.length) return;
    event.preventDefault();
    this.show(this.at + move);
  }

  async show(number, focus = true) {
    this.rows[this.at]?.removeAttribute("aria-current");
    this.at = number;
    const row = this.rows[number], task = this.tasks[number];
    row.setAttribute("aria-current", "true");
    if (focus) row.querySelector("button").focus({ preventScroll: true });
    const box = $("task-list");
    if (row.offsetTop < box.scrollTop + 30 || row.offsetTop + row.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = row.offsetTop - box.clientHeight / 3;
    const sides = await Promise.all(this.table.runs.map(async (run, i) => {
      const file = DATA.files.findIndex((one) => one.run === run && one.group === this.table.number);
      const episodes = file < 0 ? [] : await this.store.load(file), ids = task.cells[i] ? task.cells[i][0] : [];
      return [run, episodes.filter((episode) => ids.includes(episode.id))];
    }));
    if (this.tasks[this.at] !== task) return; // another one was chosen meanwhile
    const head = sides.flatMap(([, episodes]) => episodes)[0];
    $("sides").replaceChildren(make("div", { class: "card" }, make("h3", {}, visible(task.task)), make("p", { class: "meta" }, visible(task.family)),
      head ? make("pre", { class: "prompt", tabindex: "0" }, visible(head.task)) : null),
      make("div", { class: "sides" }, ...sides.map(([run, episodes]) => make("div", { class: "card" }, make("h3", { class: "key" }, named(run)),
        ...(episodes.length ? episodes.map((episode) => this.episode(episode)) : [make("p", { class: "empty" }, "Not played, or not saved.")])))));
  }

  episode(episode) {
    const [, word] = OUTCOMES[outcomeOf(episode)];
    const steps = this.store.steps(episode).map((step) => make("li", { class: step.valid ? null : "invalid" },
      make("div", { class: "seen" }, visible(step.observation)),
      make("code", {}, step.action === null ? visible(step.response === null ? "no action" : step.response) : callsOf(step.action)),
      step.valid ? null : make("p", { class: "problem" }, visible(step.error || step.parse_error || step.refusal || ""))));
    return make("details", { open: "" }, make("summary", {}, make("b", { class: outcomeOf(episode) }, word), `, ${episode.end}; reward ${short(episode.reward)}, ${episode.steps.length} steps`),
      episode.error === null ? null : make("p", { class: "problem" }, visible(episode.error)), make("ol", { class: "steps", start: "0" }, ...steps,
        episode.last ? make("li", { class: "seen answer", style: "list-style:none" }, visible(episode.last)) : null));
  }
}

results();
curves();
times();
window.TASKS = new Tasks();
