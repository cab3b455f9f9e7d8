"use strict";
// The graph of the states that a group's episodes met: nodes in layers by their distance from the start, edges the steps between them.

const GRAPH = { column: 150, row: 100, margin: 70, label: 20, most: 8 };

class GroupGraph {
  constructor(place, browser) {
    this.place = place;
    this.browser = browser;
    this.box = place.querySelector("div");
    place.addEventListener("toggle", () => this.draw());
  }

  // Draws the group of the chosen episode, if the picture is unfolded.
  async draw() {
    const { episode, store } = this.browser;
    if (!this.place.open || !episode) return;
    const graphs = await store.graphs(episode.file), method = this.browser.$("method").value;
    const credited = method && method !== "*" ? await store.credited(episode.file) : null;
    if (this.browser.episode !== episode) return; // another one was chosen meanwhile
    const graph = graphs && graphs[String(episode.group)];
    if (!graph) {
      this.box.replaceChildren(make("p", { class: "empty" }, "No episode of this group can be drawn: they failed, or have no step."));
      return;
    }
    const value = this.values(episode, method, credited), edges = this.edges(graph, episode, value);
    const top = Math.max(...edges.map((edge) => Math.abs(edge.mean ?? 0)), 0);
    const picture = this.picture(graph, edges, top, episode);
    this.box.replaceChildren(this.caption(graph, edges, value, episode),
      make("div", { class: "scroll graph", tabindex: "0", role: "group", "aria-label": "Graph of the group" }, picture), this.list(graph, edges, episode));
    const current = this.box.querySelector(".edge.current"), pane = this.box.querySelector(".graph");
    if (current && pane) { // the step that is shown is in view
      const box = current.getBBox();
      pane.scrollTo({ left: box.x + box.width / 2 - pane.clientWidth / 2, top: box.y + box.height / 2 - pane.clientHeight / 2 });
    }
  }

  // The advantage of a step under the chosen method: a function of [place of the episode, place of the step].
  values(episode, method, credited) {
    const chosen = credited && this.browser.data.methods.findIndex((one) => one.name === method), under = credited && credited[chosen];
    if (under && !under.lacks) return { name: method, of: ([e, t]) => under.values[e][t] };
    const { steps } = this.browser.store, at = this.browser.store.at.advantage;
    const why = under ? `not computed under ${method}` : "";
    return { name: "as trained", why, of: ([e, t]) => episode.all[e].steps[t][at] };
  }

  edges(graph, episode, value) {
    const at = this.browser.store.at;
    return graph.edges.map(([source, target, steps]) => {
      const actions = new Map(), numbers = [];
      for (const step of steps) {
        const row = episode.all[step[0]].steps[step[1]], text = row[at.action] === null ? "no action" : this.said(row[at.action]);
        const one = actions.get(text) || { count: 0, invalid: 0, sum: 0, known: 0 }, number = value.of(step);
        one.count += 1;
        one.invalid += !row[at.valid];
        if (number !== null && number !== undefined) { one.sum += number; one.known += 1; numbers.push(number); }
        actions.set(text, one);
      }
      const mean = numbers.length ? numbers.reduce((a, b) => a + b, 0) / numbers.length : null;
      const own = steps.filter(([e]) => e === episode.place).map(([, t]) => t);
      return { source, target, steps, mean, own, current: own.includes(this.browser.step), actions: [...actions].sort((a, b) => b[1].count - a[1].count) };
    });
  }

  // An action on one line: the values of its arguments.
  said(action) {
    try {
      return visible(JSON.parse(action).map((call) => Object.values(call.arguments).map(String).join(" ") || call.name).join("; ")).replace(/\s+/g, " ");
    } catch { return visible(action).replace(/\s+/g, " "); } // Python writes NaN and Infinity, which JSON does not know
  }

  caption(graph, edges, value, episode) {
    const met = graph.nodes.filter((node) => node[2] > 0).length, steps = edges.reduce((sum, edge) => sum + edge.steps.length, 0);
    const shared = graph.nodes.filter((node) => node[2] > 1).length;
    const parts = [`Group ${episode.group}: ${met} states, ${shared} met more than once, ${steps} steps. `, make("b", {}, `Advantages ${value.name === "as trained" ? "as trained" : `under ${value.name}`}`),
      value.why ? ` (${value.why})` : "", ": ", make("span", { class: "good" }, "blue above 0"), ", ", make("span", { class: "bad" }, "orange below 0"),
      ", paler near 0; wider: more steps. Circles: states, by visits; ✓ success; squares: where episodes ended without it. Dark outline: the episode shown above, dashed its step. Point at anything for its text; click a step or a state to go there."];
    return make("p", { class: "hint" }, ...parts);
  }

  picture(graph, edges, top, episode) {
    const { column, row, margin } = GRAPH;
    const wide = Math.max(...graph.nodes.map((node) => node[0])), deep = Math.max(...graph.nodes.map((node) => node[1]));
    const width = wide * column + 2 * margin, height = deep * row + 2 * margin - 40;
    const most = Math.max(...graph.nodes.map((node) => node[2]), 1), busiest = Math.max(...edges.map((edge) => edge.steps.length), 1);
    const spots = graph.nodes.map(([x, layer, visits]) => ({ x: margin + x * column, y: margin - 20 + layer * row, r: 6 + 9 * Math.sqrt(visits / most) }));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${graph.nodes.length} states and ${edges.length} edges` });
    const lines = svg("g"), labels = svg("g"), circles = svg("g");
    for (const edge of edges) {
      const shape = this.shape(spots[edge.source], spots[edge.target], edge.source === edge.target);
      const size = 1.2 + 5 * Math.sqrt(edge.steps.length / busiest), kind = edge.mean === null ? "" : sign(edge.mean);
      const strength = edge.mean === null || !top ? 0.6 : 0.4 + 0.6 * Math.abs(edge.mean) / top;
      const group = svg("g", { class: `edge ${kind} ${edge.own.length ? "own" : ""} ${edge.current ? "current" : ""}`.trim(), "data-edge": `${edge.source}-${edge.target}` });
      if (edge.own.length) group.append(svg("path", { class: "outline", d: shape.path, "stroke-width": size + 5 }), svg("path", { class: "under", d: shape.path, "stroke-width": size + 1 }));
      group.append(svg("path", { class: "line", d: shape.path, "stroke-width": size, "stroke-opacity": strength }), svg("path", { class: "head", d: shape.head, "fill-opacity": strength }),
        svg("title", {}, this.told(edge)));
      group.addEventListener("click", () => this.go(edge, episode));
      lines.append(group);
      labels.append(this.label(edge, shape));
    }
    graph.nodes.forEach(([, , visits, ended, kind, seen], i) => {
      const { x, y, r } = spots[i], node = svg("g", { class: `node ${kind}`, "data-node": i });
      if (kind === "end") node.append(svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12 }));
      else node.append(svg("circle", { cx: x, cy: y, r: kind === "goal" ? 13 : r }));
      node.append(svg("text", { x, y: y + 4, "text-anchor": "middle" }, kind === "goal" ? "✓" : kind === "end" ? "" : String(visits)));
      node.append(svg("title", {}, this.state(graph.nodes[i], episode)));
      if (seen) node.addEventListener("click", () => this.jump(episode.all[seen[0]], seen[1]));
      if (ended && kind !== "goal") node.append(svg("text", { class: "ended", x: x - (kind === "end" ? 9 : r + 3), y: y + 4, "text-anchor": "end" }, `${ended} ended`));
      circles.append(node);
    });
    root.append(lines, circles, labels);
    return root;
  }

  // Forward edges are nearly straight; others bow out to the side, and a step that changes nothing is a loop.
  shape(a, b, loop) {
    if (loop) {
      const x = a.x + a.r * 0.7, y = a.y - a.r * 0.7, end = [a.x + a.r * 0.9, a.y + a.r * 0.45];
      return { path: `M${x},${y} C${x + 26},${y - 22} ${x + 34},${y + 30} ${end[0] + 5},${end[1] + 2}`, head: this.arrow(end[0], end[1], -1, -0.35), at: [a.x + a.r + 24, a.y - 4], anchor: "start" };
    }
    const dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy) || 1, forward = dy > 0;
    const bow = forward ? 0 : Math.min(70, 26 + length * 0.16), cx = (a.x + b.x) / 2 + (forward ? 0 : -dy / length || 0) * bow * (forward ? 0 : 1), cy = (a.y + b.y) / 2 + (forward ? 0 : (dx / length) * bow);
    const from = this.rim(a, cx, cy, a.r), tip = this.rim(b, cx, cy, b.r + 2), back = this.rim(b, cx, cy, b.r + 9);
    const [ux, uy] = [tip[0] - back[0], tip[1] - back[1]], size = Math.hypot(ux, uy) || 1;
    const share = forward ? 0.7 : 0.45, x = (1 - share) ** 2 * from[0] + 2 * share * (1 - share) * cx + share ** 2 * back[0], y = (1 - share) ** 2 * from[1] + 2 * share * (1 - share) * cy + share ** 2 * back[1];
    return { path: `M${from} Q${cx},${cy} ${back}`, head: this.arrow(tip[0], tip[1], ux / size, uy / size), at: [x, y], anchor: "middle", brief: !forward };
  }

  rim(spot, x, y, r) {
    const dx = x - spot.x, dy = y - spot.y, length = Math.hypot(dx, dy) || 1;
    return [spot.x + (dx / length) * r, spot.y + (dy / length) * r];
  }

  arrow(x, y, ux, uy) { return `M${x},${y} L${x - 9 * ux - 5 * uy},${y - 9 * uy + 5 * ux} L${x - 9 * ux + 5 * uy},${y - 9 * uy - 5 * ux} Z`; }

  label(edge, shape) {
    const [text] = edge.actions[0], more = edge.actions.length - 1, count = edge.steps.length;
    const cut = text.length > GRAPH.label ? `${text.slice(0, GRAPH.label - 1)}…` : text;
    const numbers = [count > 1 ? `×${count}` : "", more ? `+${more}` : "", edge.mean === null ? "" : signed(edge.mean)].filter(Boolean).join("  ");
    const [x, y] = shape.at, label = svg("text", { class: "said", x, y: y - 2, "text-anchor": shape.anchor });
    if (!shape.brief) label.append(svg("tspan", { x }, cut)); // the words of a way back are shown where one points at it
    label.append(svg("tspan", { x, dy: shape.brief ? 4 : 11, class: `number ${edge.mean === null ? "" : sign(edge.mean)}` }, numbers), svg("title", {}, this.told(edge)));
    return label;
  }

  told(edge) {
    const lines = edge.actions.slice(0, GRAPH.most).map(([text, one]) => `${one.count} × ${text}${one.invalid ? ` (${one.invalid} invalid)` : ""}${one.known ? `: ${signed(one.sum / one.known)}` : ""}`);
    if (edge.actions.length > GRAPH.most) lines.push(`… and ${edge.actions.length - GRAPH.most} other actions`);
    return [`${edge.steps.length} steps, mean advantage ${edge.mean === null ? "unknown" : signed(edge.mean)}`, ...lines].join("\n");
  }

  state([, layer, visits, ended, kind, seen], episode) {
    const head = kind === "goal" ? `Success: ${ended} episodes` : `${visits} visits, ${layer} steps from the start at least${ended ? `, ${ended} episodes ended` : ""}`;
    if (!seen) return head;
    return `${head}\n${visible(episode.all[seen[0]].steps[seen[1]][this.browser.store.at.observation])}`;
  }

  // The same as a list: for reading, and for those who cannot point.
  list(graph, edges, episode) {
    const rows = [...edges].sort((a, b) => graph.nodes[a.source][1] - graph.nodes[b.source][1] || b.steps.length - a.steps.length).map((edge) => {
      const seen = graph.nodes[edge.source][5], text = seen ? visible(episode.all[seen[0]].steps[seen[1]][this.browser.store.at.observation]) : "";
      return make("tr", { "data-edge": `${edge.source}-${edge.target}` }, make("td", {}, make("button", { type: "button", class: "plain", on: { click: () => this.go(edge, episode) } }, edge.actions.map(([said, one]) => (one.count > 1 ? `${said} ×${one.count}` : said)).join(" | "))),
        make("td", { class: edge.mean === null ? "" : sign(edge.mean) }, edge.mean === null ? "–" : signed(edge.mean)), make("td", {}, String(edge.steps.length)),
        make("td", {}, String(graph.nodes[edge.source][1])), make("td", { class: "seen" }, text.length > 300 ? `${text.slice(0, 299)}…` : text));
    });
    const heads = ["action", "mean advantage", "steps", "layer", "answers the state"];
    return make("details", {}, make("summary", {}, `The ${rows.length} edges as a list`), make("div", { class: "scroll" },
      make("table", { class: "edges" }, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...rows))));
  }

  // Shows a step of the edge: of the episode that is shown where it has one.
  go(edge, episode) {
    const [e, t] = edge.steps.find(([place]) => place === episode.place) || edge.steps[0];
    this.jump(episode.all[e], t);
  }

  jump(episode, step) {
    this.browser.ready = true;
    this.browser.select(episode, step);
  }
}

function signed(value) { return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(Math.abs(value) < 10 ? 2 : 1)}`; }
