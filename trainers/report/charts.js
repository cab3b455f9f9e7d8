"use strict";
// Small charts as inline SVG; no library. `make` and `svg` are used by the other scripts too.

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Number(value.toPrecision(size >= 1000 ? 5 : 3)).toLocaleString("en", { maximumFractionDigits: 6 });
}

function percent(value) { return `${(100 * value).toFixed(1)} %`; }

function duration(seconds) {
  const s = Math.round(seconds), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${seconds < 10 ? seconds.toFixed(1) : s} s`;
}

// Round numbers from low to high, at least two where count is 4 or more; whole ones for iterations.
function ticks(low, high, count, whole = false) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(whole ? Math.max(1, rough) : rough));
  const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(Number((i * step).toPrecision(12)));
  return out;
}

// Iterations in the moving mean of a curve of so many.
function windowOf(length) { return Math.min(10, Math.max(1, Math.floor(length / 4))); }

function movingMean(values, window) {
  return values.map((_, i) => {
    const part = values.slice(Math.max(0, i + 1 - window), i + 1);
    return part.reduce((a, b) => a + b, 0) / part.length;
  });
}

// One chart. lines: [{label, x, y, color, opacity, width, dash, low, high, points}]; points: measured at these x alone, and
// not joined. share: the y axis is 0 to 100 %, or from 0 where all is below 10 %.
function lineChart({ title, description, lines, share = false, height = 170, wide = false, legend = true }) {
  const figure = make("figure", wide ? { class: "wide" } : {}, make("h3", {}, title));
  if (description) figure.append(make("p", {}, description));
  if (legend && lines.length > 1) {
    figure.append(make("div", { class: "legend" }, ...lines.map((line) =>
      make("span", {}, make("i", { style: `background:${line.color};opacity:${line.opacity || 1}` }), line.label))));
  }
  const holder = make("div", { style: `min-height:${height}px` });
  const caption = make("figcaption");
  figure.append(holder, caption);

  const xs = lines.flatMap((line) => line.x);
  const ys = lines.flatMap((line) => [...line.y, ...(line.low || []), ...(line.high || [])]);
  const x0 = Math.min(...xs);
  const x1 = Math.max(...xs, x0 + 1);
  let y0 = share ? 0 : Math.min(...ys);
  let y1 = Math.max(...ys);
  if (share && (y1 === 0 || y1 >= 0.1)) y1 = 1;
  if (y1 - y0 < 1e-12 * Math.max(1, Math.abs(y1))) { const pad = Math.abs(y1) * 0.1 || 1; y0 -= pad; y1 += pad; }
  else if (!share) { const pad = (y1 - y0) * 0.06; y0 -= pad; y1 += pad; }
  const show = share ? percent : short;
  const main = lines.find((line) => line.x.length) || lines[0];
  const spread = (line, i) => (line.low ? ` [${percent(line.low[i])}, ${percent(line.high[i])}]` : "");
  const told = (line, i) => `${line.label} ${show(line.y[i])}${spread(line, i)}`;
  const read = lines.filter((line) => !line.dash && line.x.length), lasts = new Set(read.map((line) => line.x.at(-1)));
  const said = (x) => `iteration ${x}: ${read.filter((line) => line.x.includes(x)).map((line) => told(line, line.x.indexOf(x))).join(", ")}`;
  const resting = lasts.size === 1 ? said(main.x.at(-1)) : read.length ? `last: ${read.map((line) => told(line, line.x.length - 1)).join(", ")}` : "";
  caption.textContent = resting;

  let drawn = 0;
  function draw() {
    const width = Math.max(220, Math.round(holder.clientWidth || 320));
    if (width === drawn) return;
    drawn = width;
    const left = 46, right = 10, top = 8, bottom = 24;
    const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const Y = (y) => top + (1 - (y - y0) / (y1 - y0)) * (height - top - bottom);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    picture.append(svg("title", {}, `${title}: ${show(main.y[0])} at iteration ${main.x[0]}, ${show(main.y.at(-1))} at iteration ${main.x.at(-1)}`));
    for (const y of ticks(y0, y1, 4)) {
      picture.append(svg("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), stroke: "var(--line)" }));
      picture.append(svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, share ? `${Number((100 * y).toPrecision(2))} %` : short(y)));
    }
    picture.append(svg("path", { d: `M${left} ${top}V${height - bottom}H${width - right}`, stroke: "var(--soft)", fill: "none" }));
    for (const x of ticks(x0, x1, Math.max(4, Math.floor(width / 90)), true)) {
      picture.append(svg("line", { x1: X(x), x2: X(x), y1: height - bottom, y2: height - bottom + 4, stroke: "var(--soft)" }));
      picture.append(svg("text", { x: X(x), y: height - 6, "text-anchor": "middle" }, String(x)));
    }
    for (const line of lines) {
      const path = line.x.map((x, i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`).join("");
      if (!line.points) picture.append(svg("path", {
        d: path, fill: "none", stroke: line.color, "stroke-width": line.width || 2, "stroke-linejoin": "round",
        "stroke-opacity": line.opacity || 1, "stroke-dasharray": line.dash || "none",
      }));
      if (line.points || line.x.length === 1) line.x.forEach((x, i) => {
        if (line.low) picture.append(svg("path", {
          d: `M${X(x)} ${Y(line.low[i])}V${Y(line.high[i])}M${X(x) - 4} ${Y(line.low[i])}h8M${X(x) - 4} ${Y(line.high[i])}h8`,
          stroke: line.color, "stroke-width": 1.5, fill: "none",
        }));
        picture.append(svg("circle", { cx: X(x), cy: Y(line.y[i]), r: 3.5, fill: line.color }));
      });
    }
    const cross = svg("line", { y1: top, y2: height - bottom, stroke: "var(--soft)", "stroke-dasharray": "2 3", visibility: "hidden" });
    picture.append(cross);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const at = x0 + (((event.clientX - box.left) / box.width) * width - left) / (width - left - right) * (x1 - x0);
      const x = xs.reduce((best, one) => (Math.abs(one - at) < Math.abs(best - at) ? one : best), xs[0]);
      cross.setAttribute("x1", X(x)); cross.setAttribute("x2", X(x)); cross.setAttribute("visibility", "visible");
      caption.textContent = said(x);
    });
    picture.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); caption.textContent = resting; });
    holder.replaceChildren(picture);
  }
  new ResizeObserver(draw).observe(holder);
  return figure;
}

// A phase has the same colour on every page.
function phaseKey(label) { return make("span", { class: "key" }, make("i", { style: `background:${DATA.phase_colours[label]}` }), label); }

// One bar of a run's seconds by phase. times: [[label, seconds]]
function phaseStack(times) {
  const total = times.reduce((sum, [, s]) => sum + s, 0);
  return make("div", { class: "stack", role: "img", "aria-label": times.map(([label, s]) => `${label} ${percent(s / total)}`).join(", ") },
    ...times.map(([label, s]) => make("i", { style: `flex:${s / total} 0 0;background:${DATA.phase_colours[label]}`, title: `${label}: ${duration(s)}` })));
}

// Bars with intervals, one pair per stratum. results: [{name, color, strata}]
function barChart(results, names) {
  const width = Math.max(300, 70 + 105 * names.length), height = 250, left = 44, top = 22, bottom = 40;
  const Y = (y) => top + (1 - y) * (height - top - bottom);
  const slot = (width - left) / names.length;
  const bar = Math.min(34, slot * 0.34);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", style: `max-width:${width * 1.25}px` });
  picture.append(svg("title", {}, "Success per task type with 95 % intervals; the table has the same numbers"));
  for (const y of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { x1: left, x2: width, y1: Y(y), y2: Y(y), stroke: "var(--line)" }));
    picture.append(svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, `${100 * y} %`));
  }
  names.forEach((name, index) => {
    const middle = left + slot * (index + 0.5);
    let n = 0;
    results.forEach((result, side) => {
      const stratum = result.strata.find((one) => one.stratum === name);
      if (!stratum) return;
      n = Math.max(n, stratum.n);
      const x = middle + (side - results.length / 2) * bar;
      const centre = x + bar / 2;
      picture.append(svg("rect", { x: x + 1, y: Y(stratum.success), width: bar - 2, height: Y(0) - Y(stratum.success), fill: result.color, rx: 1.5 }));
      picture.append(svg("path", {
        d: `M${centre} ${Y(stratum.low)}V${Y(stratum.high)}m-4 0h8M${centre - 4} ${Y(stratum.low)}h8`,
        stroke: "var(--ink)", "stroke-width": 1.2, fill: "none", "stroke-opacity": 0.75,
      }));
      picture.append(svg("text", { x: centre, y: Y(stratum.high) - 5, "text-anchor": "middle", class: "value" }, (100 * stratum.success).toFixed(0)));
    });
    picture.append(svg("text", { x: middle, y: height - 22, "text-anchor": "middle", class: "value" }, name));
    picture.append(svg("text", { x: middle, y: height - 7, "text-anchor": "middle" }, `n = ${n}`));
  });
  const legend = make("div", { class: "legend" });
  for (const result of results) legend.append(make("span", {}, make("i", { style: `background:${result.color}` }), result.name));
  return make("div", {}, legend, picture);
}
