// The citation graph of the pool, as SVG: years from left to right, a paper in the column of its year.

import { byId } from "./elements.js";

const MOST = 300; // papers that are drawn, of the best
const ROW = 24; // pixels between two papers of a column, where there is room
const MARGIN = 8; // pixels at the left and right
const SWEEPS = 8;
const ZOOM = [0.5, 6];
const STAR = [...Array(10)].map((_, at) => [(at % 2 ? 0.5 : 1.2), (at * Math.PI) / 5]).map(([far, turn]) => [far * Math.sin(turn), -far * Math.cos(turn)]);

let shown = { papers: [], citations: [], selected: null };
let view = { zoom: 1, x: 0, y: 0 };
let nodes = []; // of each drawn paper its group, its place and its neighbours
let edges = [];

/** Returns a new element of SVG. */
function shape(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Returns the places of papers, and the years to write: each year has columns enough for its papers. */
function arranged(papers, citations, width, height) {
  const rows = Math.max(3, Math.floor((height - 40) / ROW));
  const years = new Map();
  papers.forEach((paper, at) => {
    const year = paper.year ?? 0;
    years.set(year, [...(years.get(year) ?? []), at]);
  });
  const sorted = [...years].sort(([one], [other]) => one - other);
  const columns = sorted.reduce((sum, [, some]) => sum + Math.ceil(some.length / rows), 0);
  const step = (width - 2 * MARGIN) / Math.max(columns, 1);
  const near = papers.map(() => []);
  for (const [one, other] of citations) {
    near[one].push(other);
    near[other].push(one);
  }
  const places = papers.map(() => ({ x: 0, y: height / 2 }));
  const place = () => {
    let column = 0;
    for (const [, some] of sorted) {
      const wide = Math.ceil(some.length / rows);
      const high = Math.ceil(some.length / wide);
      some.forEach((at, order) => {
        const [x, y] = [order % wide, Math.floor(order / wide)];
        const shift = wide === 1 && column % 2 ? 0.5 : 0.25; // columns beside each other are not in line
        places[at] = { x: MARGIN + (column + x + 0.5) * step, y: 12 + ((y + shift + 0.1) / (high + 0.1)) * (height - 44) };
      });
      column += wide;
    }
  };
  place();
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const [, some] of sorted) {
      const mean = new Map(some.map((at) => [at, near[at].length ? near[at].reduce((sum, to) => sum + places[to].y, 0) / near[at].length : places[at].y]));
      some.sort((one, other) => mean.get(one) - mean.get(other) || one - other);
    }
    place();
  }
  const labels = [];
  let last = -Infinity;
  for (const [year, some] of sorted) {
    const x = some.reduce((sum, at) => sum + places[at].x, 0) / some.length;
    if (x - last >= 38) labels.push([year, (last = x)]);
  }
  return { places, labels, room: Math.min(step, ROW) };
}

/** Returns the outline of a paper: a star is asked for, a square was expanded. */
function outline(paper, half) {
  if (paper.gold) return shape("polygon", { points: STAR.map(([x, y]) => `${x * (half + 3)},${y * (half + 3)}`).join(" ") });
  if (paper.expanded) return shape("rect", { x: -half, y: -half, width: 2 * half, height: 2 * half, rx: half / 3 });
  return shape("circle", { r: half });
}

function redraw() {
  const { clientWidth: width, clientHeight: height } = byId("graph");
  const papers = shown.papers.slice(0, MOST);
  const citations = shown.citations.filter(([citing, cited]) => citing < papers.length && cited < papers.length);
  const { places, labels, room } = arranged(papers, citations, width, height);
  const base = Math.max(7, Math.min(18, room * 0.8));
  nodes = papers.map((paper, at) => {
    const half = (base + Math.min(8, 1.5 * Math.sqrt(citations.filter(([, cited]) => cited === at).length))) / 2;
    const kinds = ["new", "expanded", "gold"].filter((kind) => paper[kind]);
    const group = shape("g", { class: ["paper", ...kinds].join(" "), "data-paper": paper.id, transform: `translate(${places[at].x} ${places[at].y})` },
      shape("title", {}, paper.title || paper.id), outline(paper, half), shape("text", { "font-size": half < 7 ? 6 : 9, dy: "0.35em" }, at + 1));
    return { group, half, near: new Set(), ...places[at] };
  });
  edges = citations.map(([citing, cited]) => {
    const [from, to] = [nodes[citing], nodes[cited]];
    nodes[citing].near.add(cited);
    nodes[cited].near.add(citing);
    const share = 1 - Math.min(1, (to.half + 1) / Math.max(1, Math.hypot(to.x - from.x, to.y - from.y))); // the arrow ends at the outline
    return { citing, cited, line: shape("line", { x1: from.x, y1: from.y, x2: from.x + share * (to.x - from.x), y2: from.y + share * (to.y - from.y) }) };
  });
  const years = labels.map(([year, x]) => shape("text", { class: "year", x, y: height - 8 }, year || "no date"));
  const arrow = shape("marker", { id: "arrow", viewBox: "0 0 6 6", refX: 6, refY: 3, markerWidth: 6, markerHeight: 6, orient: "auto" },
    shape("path", { d: "M0 0 6 3 0 6Z", fill: "context-stroke" }));
  const drawing = shape("svg", { width: "100%", height: "100%", "aria-hidden": "true" }, arrow,
    ...edges.map(({ line }) => line), ...nodes.map(({ group }) => group), ...years);
  byId("graph").replaceChildren(drawing);
  view = { zoom: 1, x: 0, y: 0 };
  mark();
}

/** Shows the part of the drawing that `view` says; what is outside of it is cut off. */
function look() {
  const { clientWidth: width, clientHeight: height } = byId("graph");
  byId("graph").firstChild?.setAttribute("viewBox", `${view.x} ${view.y} ${width / view.zoom} ${height / view.zoom}`);
  byId("graph").classList.toggle("large", view.zoom > 1);
}

function centre() {
  const node = nodes[shown.papers.findIndex((paper) => paper.id === shown.selected)];
  const { clientWidth: width, clientHeight: height } = byId("graph");
  const [x, y] = node ? [node.x, node.y] : [view.x + width / view.zoom / 2, view.y + height / view.zoom / 2];
  return { x, y, width, height };
}

function mark() {
  const selected = shown.papers.findIndex((paper) => paper.id === shown.selected);
  const around = nodes[selected]?.near;
  nodes.forEach(({ group }, at) => {
    group.classList.toggle("selected", at === selected);
    group.classList.toggle("near", Boolean(around?.has(at)));
    group.classList.toggle("faded", Boolean(around && at !== selected && !around.has(at)));
  });
  for (const { citing, cited, line } of edges) {
    const touches = citing === selected || cited === selected;
    line.setAttribute("class", !around ? "" : touches ? "near" : "faded");
  }
  if (view.zoom > 1 && around) zoom(1);
  else look();
}

/** Makes the graph; `onSelect` is called with the id of a paper that is clicked. */
export function start(onSelect) {
  const box = byId("graph");
  let grip = null; // where the pointer holds an enlarged drawing
  let moved = false;
  box.addEventListener("click", (event) => {
    const paper = event.target.closest("[data-paper]");
    if (paper && !moved) onSelect(paper.dataset.paper);
  });
  box.addEventListener("pointerdown", (event) => {
    moved = false;
    grip = view.zoom > 1 ? { x: event.clientX, y: event.clientY } : null;
  });
  window.addEventListener("pointerup", () => { grip = null; });
  box.addEventListener("pointermove", (event) => {
    if (!grip) return;
    const [x, y] = [event.clientX - grip.x, event.clientY - grip.y];
    if (!moved && Math.hypot(x, y) < 4) return;
    moved = true;
    view = { ...view, x: view.x - x / view.zoom, y: view.y - y / view.zoom };
    grip = { x: event.clientX, y: event.clientY };
    look();
  });
  new ResizeObserver(redraw).observe(box);
}

/** Draws a state: its papers and citations, with one of them selected. */
export function draw(state, selected) {
  shown = { papers: state.papers, citations: state.citations, selected };
  redraw();
  return Math.min(MOST, state.papers.length);
}

/** Marks another paper. */
export function select(id) {
  shown.selected = id;
  mark();
}

/** Enlarges the graph by a factor, around the selected paper where there is one; 0 shows all of it. */
export function zoom(factor) {
  const { x, y, width, height } = centre();
  const level = Math.max(ZOOM[0], Math.min(ZOOM[1], view.zoom * factor));
  view = factor && level !== 1 ? { zoom: level, x: x - width / level / 2, y: y - height / level / 2 } : { zoom: 1, x: 0, y: 0 };
  look();
}
