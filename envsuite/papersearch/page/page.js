// The page: it shows the state that the server sends, and collects the calls of the next step.

import { Refused, ask, byId, counted, element, shortened, unseen } from "./elements.js";
import * as graph from "./graph.js";
import * as pool from "./pool.js";

const KEY = "papersearch-visit";
const SINGLE = "papersearch-single-keys";

let visit = sessionStorage.getItem(KEY);
let state = null;
let tray = []; // calls of the next step
let hinted = [];
let selected = null; // id of a paper
let busy = false;

const say = (text, bad = false) => {
  byId("said").textContent = text;
  byId("said").classList.toggle("bad", bad);
};

/** Runs one thing at a time, and says what was refused. */
async function doing(action) {
  if (busy) return;
  busy = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await saying(action);
  } finally {
    busy = false;
    document.body.removeAttribute("aria-busy");
  }
}

/** Runs an action; says what was refused, and begins anew where the server has forgotten the episode. */
async function saying(action) {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    let more = "";
    if (error.state) show(error.state);
    if (error.status === 410) more = await anew().then(() => " This is a new one.", (other) => ` ${other.message}`);
    say(`${error.message}${more}`, true);
  }
}

async function fetched(path, body) {
  return (await ask(visit, path, body)).json();
}

async function anew() {
  const begun = await (await ask(null, "/api/visit", {})).json();
  visit = begun.visit;
  sessionStorage.setItem(KEY, visit);
  show(begun.state, true);
}

// -- showing a state --------------------------------------------------------------------------------------------------

function show(next, another = false) {
  const focused = document.activeElement?.closest("#papers li[data-place]") ? selected : null;
  state = next;
  if (another || state.over) tray = [];
  if (another) closeHint();
  showTask();
  showStep();
  showScore();
  showTurns();
  if (selected === null || another || !state.papers.some((paper) => paper.id === selected)) selected = null;
  pool.draw(state, tray, another);
  pool.select(selected);
  const drawn = graph.draw(state, selected);
  showLegend(drawn);
  showSelected();
  if (focused !== null && selected !== null) pool.focus(pool.placeOf(selected));
}

function showTask() {
  const task = state.task;
  const which = task.number === null ? task.id : `Task ${task.number.toLocaleString("en")} of ${task.of.toLocaleString("en")}`;
  byId("place").textContent = `${which}, split ${task.split}`;
  byId("query").textContent = task.query;
  byId("until").textContent = `Find all papers that this query asks for.${task.until ? ` Papers after ${task.until} do not count, and are not shown.` : ""}`;
  document.title = `${shortened(task.query, 80)} – PaperSearch`;
}

function showStep() {
  const number = state.steps + (state.over ? 0 : 1);
  const of = state.horizon === null ? "" : ` of ${state.horizon}`;
  byId("step-name").textContent = state.over ? `The episode is over after ${counted(state.steps, "step")}` : `Step ${number}${of}`;
  byId("search").hidden = byId("tray").hidden = byId("run").hidden = byId("hint").hidden = state.over;
  byId("how").textContent = `Enter adds a search to the step, and in the empty field runs it. Up to ${counted(state.max_calls, "call")} run together: each sees the pool as it is now.`;
  byId("undo").setAttribute("aria-disabled", String(!state.can_undo));
  if (state.over) closeHint();
  showTray();
}

function showTray() {
  const list = byId("tray");
  list.replaceChildren(...tray.map((call, place) => element("li", {},
    element("span", { class: "call" }, element("b", {}, call.tool), " ", element("span", { dir: "auto" }, argumentOf(call))),
    element("button", { type: "button", class: "quiet slim", onclick: () => take(place) }, "Remove", unseen(` ${call.tool} ${argumentOf(call)}`)))));
  byId("run").textContent = tray.length ? `Run the step (${counted(tray.length, "call")})` : "Run the step";
  byId("run").setAttribute("aria-disabled", String(!tray.length));
}

/** Returns the argument of a call for people: of an expansion the paper's title. */
function argumentOf(call) {
  if (call.tool !== "expand") return shortened(call.argument, 200);
  const paper = state.papers[pool.placeOf(call.argument)] ?? state.papers.find((one) => one.id === call.argument);
  return paper?.title ? `${shortened(paper.title, 100)} (${paper.id})` : shortened(call.argument, 100);
}

function showScore() {
  const button = byId("reveal");
  button.hidden = state.over;
  button.setAttribute("aria-pressed", String(state.revealed));
  const figures = state.figures;
  byId("score").classList.toggle("final", state.over);
  if (figures === null) {
    byId("figures").replaceChildren(element("p", { class: "soft small" }, "Shown at the end: it depends on which papers are asked for, which an agent does not know."));
    return;
  }
  const share = (value) => value.toFixed(2);
  const rows = [["Reward", String(Number(figures.reward.toFixed(3)))], ["Recall", share(figures.recall)], ["Precision", share(figures.precision)], ["F1", share(figures.f1)],
    ...[20, 50, 100].map((k) => [`Recall in the first ${k}`, share(figures[`recall_${k}`])])];
  const list = element("dl", { class: "figures" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const parts = [list];
  if (state.over) {
    const all = figures.found === figures.gold;
    parts.unshift(element("p", { class: all ? "verdict good" : "verdict" },
      all ? `All ${counted(figures.gold, "paper")} that the query asks for ${figures.gold === 1 ? "is" : "are"} in the pool.` : `${figures.found} of the ${counted(figures.gold, "paper")} that the query asks for ${figures.found === 1 ? "is" : "are"} in the pool. They are marked ★.`));
    if (state.missed.length) {
      parts.push(element("h3", {}, "Not found"), element("ul", { class: "plain" }, ...state.missed.map((paper) =>
        element("li", {}, element("span", { dir: "auto" }, paper.title || paper.id), element("span", { class: "soft" }, ` · ${paper.year ?? "no date"} · ${paper.id}`)))));
    }
    parts.push(element("div", { class: "row" }, element("button", { type: "button", class: "primary", onclick: () => move({ to: "next" }) }, "Next task")));
  }
  byId("figures").replaceChildren(...parts);
}

function showTurns() {
  const made = state.turns.map((turn, place) => {
    const name = `Step ${place + 1}${turn.reward === null ? "" : `, reward ${Number(turn.reward.toFixed(3))}`}`;
    return element("div", { class: "turn" }, element("h3", {}, name), element("ul", { class: "plain" }, ...turn.results.map((call) =>
      element("li", { class: call.refused ? "refused" : "executed" },
        element("b", {}, call.tool), " ", element("span", { dir: "auto" }, argumentOf(call)), ": ", element("span", { class: "result" }, call.said)))));
  });
  const [last, ...earlier] = made.reverse();
  byId("log").hidden = last === undefined;
  const opened = byId("turns").querySelector("details")?.open ?? false;
  const rest = element("details", { open: opened }, element("summary", {}, `Earlier: ${counted(earlier.length, "step")}`), ...earlier);
  byId("turns").replaceChildren(...(last ? [last] : []), ...(earlier.length ? [rest] : []));
}

function showLegend(drawn) {
  const edges = state.citations.length;
  const label = state.papers.length ? `Graph of ${counted(drawn, "paper")} and ${counted(edges, "citation")} among them; select a paper in the pool, and its citations are listed below` : "No papers yet";
  byId("graph").setAttribute("aria-label", label);
  const cut = drawn < state.total ? ` The best ${drawn} are drawn.` : "";
  byId("legend").textContent = state.papers.length ? `${counted(edges, "citation")}. From left to right the years, numbered as in the pool; arrows lead to the cited paper. Square: expanded. Yellow: new.${state.over ? " Star: asked for." : ""}${cut}` : "Once there are papers, their citations are drawn here.";
}

// -- the selected paper, and its citations as text -----------------------------------------------------------------------

function select(id) {
  if (id === selected) return;
  selected = id;
  pool.select(id);
  graph.select(id);
  showSelected();
}

function showSelected() {
  const box = byId("selected");
  const place = selected === null ? -1 : pool.placeOf(selected);
  if (place < 0) {
    box.replaceChildren(state.papers.length ? element("p", { class: "soft small" }, "Select a paper in the pool or in the graph: what it cites, and what cites it, is listed here.") : "");
    return;
  }
  const paper = state.papers[place];
  const cites = state.citations.filter(([one]) => one === place).map(([, other]) => other);
  const cited = state.citations.filter(([, other]) => other === place).map(([one]) => one);
  const links = (name, some) => [element("h4", {}, `${name} (${some.length})`),
    some.length ? element("ul", { class: "links" }, ...some.sort((one, other) => one - other).map((at) => element("li", {},
      element("button", { type: "button", class: "link", dir: "auto", onclick: () => follow(at) },
        `${at + 1}. ${state.papers[at].title || state.papers[at].id}${state.papers[at].year ? ` (${state.papers[at].year})` : ""}`)))) : element("p", { class: "soft small" }, "none in the pool")];
  box.replaceChildren(
    element("h3", { id: "selected-name", tabindex: "-1", dir: "auto" }, `${place + 1}. ${paper.title || paper.id}`),
    element("div", { class: "row" }, element("button", { type: "button", class: "quiet slim", onclick: () => pool.focus(place) }, "To the paper", unseen(" in the pool"))),
    ...links("Cites", cites), ...links("Cited by", cited));
}

function follow(place) {
  select(state.papers[place].id);
  byId("selected-name").focus();
}

function toCitations() {
  if (byId("selected").contains(document.activeElement)) pool.focus(pool.placeOf(selected));
  else if (selected !== null) byId("selected-name").focus();
}

// -- the step --------------------------------------------------------------------------------------------------------------

function add(tool, argument) {
  if (state.over) return false;
  if (tray.length >= state.max_calls) {
    say(`A step has at most ${counted(state.max_calls, "call")}: run it, or remove one.`, true);
    return false;
  }
  tray.push({ tool, argument });
  showTray();
  pool.plan(tray);
  say(`Added: ${tool} ${argumentOf({ tool, argument })}. ${counted(tray.length, "call")} in the step.`);
  return true;
}

function take(place) {
  const [call] = tray.splice(place, 1);
  const inside = byId("tray").contains(document.activeElement);
  showTray();
  pool.plan(tray);
  say(`Removed: ${call.tool} ${argumentOf(call)}. ${counted(tray.length, "call")} in the step.`);
  if (inside) (byId("tray").querySelectorAll("button")[Math.min(place, tray.length - 1)] ?? byId("words")).focus();
}

function expand(id) {
  const planned = tray.findIndex((call) => call.tool === "expand" && call.argument === id);
  if (planned >= 0) take(planned);
  else if (state.papers[pool.placeOf(id)].expanded) say("This paper was expanded before.", true);
  else add("expand", id);
}

const run = () => doing(async () => {
  if (state.over) return;
  if (!tray.length) {
    say("The step has no calls: add a search, or an expansion of a paper.", true);
    return;
  }
  const before = state.total;
  const inPool = byId("papers").contains(document.activeElement);
  const next = (await fetched("/api/step", { change: state.change, calls: tray })).state;
  tray = [];
  closeHint();
  show(next);
  const { results } = state.turns.at(-1);
  const refused = results.filter((call) => call.refused);
  const why = refused.length ? ` ${counted(refused.length, "call")} refused: ${refused.map((call) => `${call.tool} ${argumentOf(call)}: ${call.said.replace("refused, ", "")}`).join("; ")}.` : "";
  const end = state.over ? ` The episode is over: recall ${state.figures.recall.toFixed(2)}.` : "";
  say(`Step ${state.steps}: ${counted(state.total - before, "new paper")}, ${state.total.toLocaleString("en")} in the pool.${why}${end}`, refused.length > 0);
  if (state.over) byId("score-name").focus();
  else if (!inPool) byId("words").focus({ preventScroll: true });
});

const undo = () => doing(async () => {
  if (!state.can_undo) {
    say("There is nothing to take back.", true);
    return;
  }
  show((await fetched("/api/undo", { change: state.change })).state);
  say(`The step was taken back. ${counted(state.total, "paper")} in the pool.`);
});

const hint = () => doing(async () => {
  if (state.over) return;
  hinted = (await fetched("/api/hint")).calls;
  byId("hints").replaceChildren(...hinted.map((call) => element("li", {}, element("b", {}, call.tool), " ", element("span", { dir: "auto" }, argumentOf(call)))));
  byId("hinted").hidden = false;
  byId("hint-name").focus();
});

function closeHint() {
  const inside = byId("hinted").contains(document.activeElement);
  byId("hinted").hidden = true;
  if (inside) byId("words").focus();
}

function takeHint() {
  const known = new Set(tray.map((call) => `${call.tool} ${call.argument}`));
  for (const call of hinted.filter((one) => !known.has(`${one.tool} ${one.argument}`))) if (!add(call.tool, call.argument)) break;
  closeHint();
}

const reveal = () => doing(async () => {
  if (state.over) return;
  show((await fetched("/api/score", { show: !state.revealed })).state);
  say(state.revealed ? `Reward ${Number(state.figures.reward.toFixed(3))}, recall ${state.figures.recall.toFixed(2)}.` : "The score is hidden.");
});

// -- tasks, files ----------------------------------------------------------------------------------------------------------

/** Goes to another task, after a question where steps would be lost. */
async function move(body) {
  if (state.steps && !state.over && !(await agreed())) return;
  await doing(async () => {
    show((await fetched("task" in body ? "/api/begin" : "/api/move", { change: state.change, ...body })).state, true);
    say(`${byId("place").textContent}: ${state.task.query}`);
    byId("words").focus();
  });
}

function agreed() {
  const dialog = byId("leave");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "leave"), { once: true }));
}

async function load(id) {
  let whole = null;
  await saying(async () => {
    whole = await fetched(`/api/paper?id=${encodeURIComponent(id)}`);
  });
  return whole;
}

async function listTasks() {
  const words = byId("task-words").value;
  const found = await fetched(`/api/tasks?words=${encodeURIComponent(words)}`);
  if (words !== byId("task-words").value) return; // a later request answers
  byId("task-count").textContent = found.tasks.length < found.total ? `The first ${found.tasks.length} of ${counted(found.total, "task")}` : counted(found.total, "task");
  byId("task-matches").replaceChildren(...found.tasks.map((task) => element("li", {},
    element("button", { type: "button", class: "link", dir: "auto", onclick: () => {
      byId("task-list").close();
      move({ task: task.id });
    } }, shortened(task.query, 300)))));
}

// -- keys ------------------------------------------------------------------------------------------------------------------

const KEYS = {
  "/": () => byId("words").focus(),
  r: run,
  u: undo,
  h: hint,
  s: reveal,
  c: toCitations,
  e: () => selected !== null && !state.over && expand(selected),
  j: () => pool.focus(within() ? pool.placeOf(selected) + 1 : Math.max(pool.placeOf(selected), 0)),
  k: () => pool.focus(within() ? pool.placeOf(selected) - 1 : Math.max(pool.placeOf(selected), 0)),
  "?": () => byId("keys").showModal(),
};

const within = () => byId("papers").contains(document.activeElement);

document.addEventListener("keydown", (event) => {
  if (state === null || event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && event.ctrlKey) {
    event.preventDefault();
    enter(true);
    return;
  }
  if (event.ctrlKey || event.altKey || event.metaKey || !byId("single").checked) return;
  if (event.target.closest("input, textarea, select") || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});

/** Adds what is in the search field to the step; runs it if nothing is, or at once. */
function enter(atOnce) {
  const words = byId("words").value;
  if (words.trim()) {
    if (!add("search", words.trim())) return;
    byId("words").value = "";
    if (!atOnce) return;
  }
  run();
}

// -- start -----------------------------------------------------------------------------------------------------------------

pool.start({ select, expand, load, citations: toCitations });
graph.start(select);
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(false);
});
byId("run").addEventListener("click", () => (byId("words").value.trim() ? enter(true) : run()));
byId("undo").addEventListener("click", undo);
byId("hint").addEventListener("click", hint);
byId("take-hint").addEventListener("click", takeHint);
byId("close-hint").addEventListener("click", closeHint);
byId("again").addEventListener("click", () => move({ to: "same" }));
byId("reveal").addEventListener("click", reveal);
byId("show-keys").addEventListener("click", KEYS["?"]);
byId("list-tasks").addEventListener("click", () => {
  byId("task-list").showModal();
  saying(listTasks);
});
byId("task-words").addEventListener("input", () => saying(listTasks));
byId("single").checked = localStorage.getItem(SINGLE) !== "no";
byId("single").addEventListener("change", () => localStorage.setItem(SINGLE, byId("single").checked ? "yes" : "no"));
for (const button of document.querySelectorAll("[data-to]")) button.addEventListener("click", () => move({ to: button.dataset.to }));
for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => graph.zoom(Number(button.dataset.zoom)));

doing(async () => {
  if (visit === null) await anew();
  else show((await fetched("/api/state")).state, true);
}).then(() => byId("words").focus({ preventScroll: true }));
