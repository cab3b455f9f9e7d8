// The citation graph of the pool: years from left to right, a paper in the column of its year.

const MOST = 300; // papers that are drawn, of the best
const ROW = 24; // pixels between two papers of a column, where there is room
const MARGIN = 8; // pixels at the left and right
const SWEEPS = 8;

let drawn = null;
let shown = { papers: [], citations: [], selected: null };
let onSelect = () => {};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function style() {
  const [ink, card, edge, line, accent, sun, good] = ["ink", "card", "edge", "wire", "accent", "sun", "good"].map(colour);
  const font = { "font-family": "system-ui, sans-serif", color: ink };
  return [
    { selector: "node.paper", style: { ...font, width: "data(size)", height: "data(size)", "background-color": card,
      "border-width": 1.5, "border-color": edge, label: "data(rank)", "font-size": "data(font)", "min-zoomed-font-size": 7,
      "text-valign": "center", "text-halign": "center" } },
    { selector: "node.new", style: { "background-color": sun, color: colour("on-sun") } },
    { selector: "node.expanded", style: { shape: "round-rectangle", "background-color": accent, "border-color": accent, color: colour("on-accent") } },
    { selector: "node.gold", style: { shape: "star", "border-color": good, "border-width": 2.5, width: "data(star)", height: "data(star)" } },
    { selector: "node.year", style: { ...font, color: colour("soft"), width: 1, height: 1, "background-opacity": 0, label: "data(label)",
      "font-size": 11, "text-valign": "center", events: "no" } },
    { selector: "edge", style: { width: 1, "line-color": line, opacity: 0.7, "curve-style": "straight", "target-arrow-shape": "triangle",
      "target-arrow-color": line, "arrow-scale": 0.6 } },
    { selector: ".faded", style: { opacity: 0.25 } },
    { selector: "edge.near", style: { width: 2, opacity: 1, "line-color": accent, "target-arrow-color": accent, "arrow-scale": 0.9, "z-index": 9 } },
    { selector: "node.near", style: { "border-color": accent, "border-width": 2.5 } },
    { selector: "node.selected", style: { "border-color": ink, "border-width": 4, "z-index": 10 } },
    { selector: "node.hovered", style: { label: "data(title)", "text-wrap": "wrap", "text-max-width": 220, "font-size": 12, color: ink,
      "text-background-color": card, "text-background-opacity": 0.95, "text-background-padding": 4, "text-valign": "top", "z-index": 11 } },
  ];
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

function elements(width, height) {
  const papers = shown.papers.slice(0, MOST);
  const citations = shown.citations.filter(([one, other]) => one < papers.length && other < papers.length);
  const { places, labels, room } = arranged(papers, citations, width, height);
  const cited = papers.map(() => 0);
  for (const [, other] of citations) cited[other] += 1;
  const base = Math.max(7, Math.min(18, room * 0.8));
  return [
    ...papers.map((paper, at) => {
      const size = base + Math.min(8, 1.5 * Math.sqrt(cited[at]));
      const kinds = ["new", "expanded", "gold"].filter((kind) => paper[kind]);
      const title = paper.title || paper.id;
      return { group: "nodes", classes: ["paper", ...kinds].join(" "), position: places[at],
        data: { id: `p${at}`, paper: paper.id, rank: at + 1, title, size, star: size + 6, font: size < 14 ? 6 : 9 } };
    }),
    ...labels.map(([year, x]) => ({ group: "nodes", classes: "year", position: { x, y: height - 12 }, data: { id: `y${year}`, label: year || "no date" } })),
    ...citations.map(([one, other], at) => ({ group: "edges", data: { id: `e${at}`, source: `p${one}`, target: `p${other}` } })),
  ];
}

function mark() {
  drawn.elements().removeClass("faded near selected");
  const node = drawn.nodes(".paper").filter((one) => one.data("paper") === shown.selected);
  if (node.empty()) return;
  const around = node.closedNeighborhood();
  drawn.elements(".paper, edge").not(around).addClass("faded");
  around.addClass("near");
  node.removeClass("near").addClass("selected");
  if (drawn.userPanningEnabled()) drawn.center(node);
}

function redraw() {
  const box = byGraph();
  drawn.resize();
  drawn.userPanningEnabled(false);
  drawn.viewport({ zoom: 1, pan: { x: 0, y: 0 } });
  drawn.batch(() => {
    drawn.elements().remove();
    drawn.add(elements(box.clientWidth, box.clientHeight));
  });
  mark();
}

const byGraph = () => document.getElementById("graph");

/** Makes the graph; `select` is called with the id of a paper that is clicked. */
export function start(select) {
  onSelect = select;
  drawn = window.cytoscape({ container: byGraph(), style: style(), layout: { name: "preset" }, minZoom: 0.5, maxZoom: 6,
    userZoomingEnabled: false, userPanningEnabled: false, boxSelectionEnabled: false, autoungrabify: true, autounselectify: true });
  drawn.on("tap", "node.paper", (event) => onSelect(event.target.data("paper")));
  drawn.on("mouseover", "node.paper", (event) => event.target.addClass("hovered"));
  drawn.on("mouseout", "node.paper", (event) => event.target.removeClass("hovered"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.style(style()));
  new ResizeObserver(redraw).observe(byGraph());
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

/** Enlarges the graph by a factor; 0 shows all of it. */
export function zoom(factor) {
  if (!factor) {
    drawn.userPanningEnabled(false);
    drawn.viewport({ zoom: 1, pan: { x: 0, y: 0 } });
    return;
  }
  const box = byGraph();
  const middle = drawn.nodes(".selected").nonempty() ? drawn.nodes(".selected").renderedPosition() : { x: box.clientWidth / 2, y: box.clientHeight / 2 };
  drawn.zoom({ level: drawn.zoom() * factor, renderedPosition: middle });
  drawn.userPanningEnabled(drawn.zoom() > 1);
}
