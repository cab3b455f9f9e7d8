// The list of papers: titles that open their abstracts, and buttons that put expansions into the step.

import { byId, counted, element, unseen } from "./elements.js";

const AT_ONCE = 50; // papers that are listed before "Show more"

let act = {};
let papers = [];
let degrees = [];
let places = new Map(); // id -> place in papers
let listed = AT_ONCE;
let planned = new Set(); // ids whose expansion is in the step
let selected = null;
const opened = new Map(); // id -> what the server said of the paper; null while it is asked

/** Prepares the list. `actions`: select(id), expand(id), citations(), load(id). */
export function start(actions) {
  act = actions;
  byId("papers").addEventListener("focusin", (event) => {
    const item = event.target.closest("li[data-place]");
    if (item) act.select(papers[item.dataset.place].id);
  });
  byId("papers").addEventListener("keydown", (event) => {
    const item = event.target.closest("li[data-place]");
    if (!item || event.ctrlKey || event.altKey || event.metaKey) return;
    const to = { ArrowDown: Number(item.dataset.place) + 1, ArrowUp: Number(item.dataset.place) - 1, Home: 0, End: listed - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    focus(to);
  });
  byId("more").addEventListener("click", () => {
    const first = listed;
    listed += AT_ONCE;
    fill();
    focus(first);
  });
}

/** Shows the pool of a new state; `calls` are those of the next step. */
export function draw(state, calls, another) {
  if (another) {
    listed = AT_ONCE;
    opened.clear();
  }
  papers = state.papers;
  places = new Map(papers.map((paper, at) => [paper.id, at]));
  degrees = papers.map(() => [0, 0]);
  for (const [one, other] of state.citations) {
    degrees[one][0] += 1;
    degrees[other][1] += 1;
  }
  planned = planOf(calls);
  const more = state.total > papers.length ? `; the ${papers.length.toLocaleString("en")} best are listed` : "";
  byId("pool-name").textContent = state.total ? `Pool: ${counted(state.total, "paper")}, best first${more}` : "Pool";
  fill();
}

/** Shows which expansions are in the step. */
export function plan(calls) {
  planned = planOf(calls);
  for (const item of byId("papers").children) {
    const button = item.querySelector("button.expand");
    if (button) planState(button, planned.has(papers[item.dataset.place].id));
  }
}

/** Marks the selected paper. */
export function select(id) {
  selected = id;
  for (const item of byId("papers").querySelectorAll("li[data-place]")) {
    item.classList.toggle("selected", papers[item.dataset.place].id === id);
  }
}

/** Moves the focus to the title of the paper at a place, or as near as there is. */
export function focus(place) {
  if (!papers.length) return false;
  const at = Math.min(Math.max(place, 0), papers.length - 1);
  if (at >= listed) {
    listed = at + AT_ONCE;
    fill();
  }
  const title = byId(`title-${at}`);
  title.focus({ preventScroll: true });
  title.closest("li").scrollIntoView({ block: "nearest" });
  return true;
}

/** Returns the place of a paper in the pool; -1 if it has none. */
export const placeOf = (id) => places.get(id) ?? -1;

const planOf = (calls) => new Set(calls.filter((call) => call.tool === "expand").map((call) => call.argument));

function planState(button, is) {
  button.setAttribute("aria-pressed", String(is));
  button.firstChild.textContent = is ? "In the step" : "Expand";
}

function fill() {
  const list = byId("papers");
  if (!papers.length) {
    list.replaceChildren(element("li", { class: "empty" }, "No papers yet: search, and expand what you find."));
  } else {
    list.replaceChildren(...papers.slice(0, listed).map(item));
  }
  const rest = papers.length - listed;
  byId("more").hidden = rest <= 0;
  byId("more").textContent = rest > 0 ? `Show ${Math.min(rest, AT_ONCE)} more of ${rest.toLocaleString("en")}` : "";
}

function item(paper, place) {
  const title = paper.title || paper.id;
  const body = element("div", { class: "abstract", id: `abstract-${place}`, dir: "auto" });
  const open = element("button", { type: "button", class: "title", id: `title-${place}`, dir: "auto", "aria-expanded": String(opened.has(paper.id)),
    "aria-controls": `abstract-${place}`, onclick: () => toggle(paper, place) }, title);
  const [cites, cited] = degrees[place];
  const marks = [paper.gold && ["gold", "★ asked for"], paper.new && ["new", "new"], paper.expanded && ["expanded", "expanded"]].filter(Boolean);
  const made = element("li", { "data-place": place, class: paper.id === selected ? "selected" : null },
    element("p", { class: "rank", "aria-hidden": "true" }, String(place + 1)),
    element("div", { class: "paper" },
      element("h3", {}, open),
      element("p", { class: "soft small" },
        element("span", {}, paper.year ? String(paper.year) : "no date"), " · ", element("span", { class: "code", dir: "auto" }, paper.id),
        ` · cites ${cites}, cited by ${cited} here`,
        ...marks.flatMap(([kind, said]) => [" ", element("span", { class: `mark ${kind}` }, said)])),
      body,
      element("div", { class: "row" }, expansion(paper, title),
        element("button", { type: "button", class: "quiet slim", onclick: () => act.citations() }, "Citations", unseen(` of ${title}`)))));
  fillAbstract(body, paper);
  return made;
}

function expansion(paper, title) {
  if (paper.expanded) return null;
  const button = element("button", { type: "button", class: "quiet slim expand", onclick: () => act.expand(paper.id) }, document.createTextNode(""), unseen(`: ${title}`));
  planState(button, planned.has(paper.id));
  return button;
}

function fillAbstract(body, paper) {
  const whole = opened.get(paper.id);
  body.classList.toggle("open", Boolean(whole));
  for (const name of ["tabindex", "role", "aria-label"]) body.removeAttribute(name);
  if (!whole) {
    body.replaceChildren(paper.snippet || "No abstract.");
    return;
  }
  const from = [whole.authors, whole.venue].filter(Boolean).join(" · ");
  body.replaceChildren(
    ...(whole.title && whole.title !== paper.title ? [element("p", { dir: "auto" }, whole.title)] : []),
    ...(from ? [element("p", { class: "soft", dir: "auto" }, from)] : []),
    element("p", { dir: "auto" }, whole.abstract || "No abstract."));
  if (body.scrollHeight > body.clientHeight + 1) { // it scrolls: by keys, too
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "Abstract"]]) body.setAttribute(name, value);
  }
}

async function toggle(paper, place) {
  if (opened.has(paper.id)) {
    opened.delete(paper.id);
  } else {
    opened.set(paper.id, null);
    const whole = await act.load(paper.id);
    if (!opened.has(paper.id)) return; // closed meanwhile
    if (whole) opened.set(paper.id, whole);
    else opened.delete(paper.id);
  }
  const body = byId(`abstract-${place}`);
  if (body === null || papers[place] !== paper) return; // another state is shown
  byId(`title-${place}`).setAttribute("aria-expanded", String(opened.has(paper.id)));
  fillAbstract(body, paper);
}
