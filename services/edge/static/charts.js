"use strict";
// Charts as SVG: their text is text, their colours follow the style sheet, and each has its numbers in a table below.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 200, LEFT = 52, RIGHT = 8, TOP = 10, BOTTOM = 22; // of a chart over time, in its own units
const GAP_POINTS = 1.5; // a line is not drawn across points that are missing

function node(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...children);
  return made;
}

/** A number with about three digits. */
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)}k`;
  if (size >= 100 || value === 0) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}

function clock(atUs) {
  return new Date(atUs / 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

/** The end of an axis: at least `most`, with one or two digits. */
function ceiling(most) {
  if (most <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].find((step) => step * unit >= most) * unit;
}

/** One horizontal bar of parts: [{ name, value, kind, said }]. */
function partsBar(box, label, parts) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  const bar = node("svg", { viewBox: "0 0 1000 44", preserveAspectRatio: "none", class: "bar", role: "img",
    "aria-label": `${label}: ${parts.map((part) => part.said).join(", ")}` });
  let at = 0;
  for (const part of parts) {
    const width = total ? 1000 * part.value / total : 0;
    if (width > 0) bar.append(node("rect", { x: at, y: 0, width, height: 44, class: part.kind }, node("title", {}, part.said)));
    at += width;
  }
  box.replaceChildren(bar, element("ul", { class: "legend" }, ...parts.map(legendItem)));
}

function legendItem(part) {
  return element("li", {}, swatch(part.kind), element("span", {}, part.name), element("b", {}, part.shown ?? ""));
}

function swatch(kind) {
  return node("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, node("rect", { width: 10, height: 10, class: kind }));
}

/** Axes, and functions from time and value to places. */
function frame(label, unit, range, low, high) {
  const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * (at - range.from) / Math.max(1, range.to - range.from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);
  const svg = node("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": label });
  const values = low < 0 ? [low, 0, high] : [0, high / 2, high];
  for (const value of values) {
    svg.append(node("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: value === 0 ? "axis" : "grid" }),
      node("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, short(value)));
  }
  for (const share of [0, 0.5, 1]) {
    const at = range.from + share * (range.to - range.from);
    const anchor = share === 0 ? "" : share === 1 ? " end" : " middle";
    svg.append(node("text", { x: x(at), y: HEIGHT - 6, class: `tick${anchor}` }, clock(at)));
  }
  svg.append(node("text", { x: LEFT + 4, y: TOP + 10, class: "unit" }, unit));
  return { svg, x, y };
}

/**
 * Lines over time. `series`: [{ name, kind, of }], where `of(point)` gives a value or null; `range`: { from, to, width }.
 */
function lines(box, label, unit, points, range, series) {
  const all = points.flatMap((point) => series.map((one) => one.of(point))).filter((value) => value !== null);
  const low = Math.min(0, ...all) < 0 ? -ceiling(-Math.min(...all)) : 0;
  const { svg, x, y } = frame(label, unit, range, low, ceiling(Math.max(0, ...all)));
  for (const one of series) {
    let path = "", before = null;
    const dots = [];
    for (const point of points) {
      const value = one.of(point);
      if (value === null) { before = null; continue; }
      const at = point.start_at + range.width / 2;
      const joined = before !== null && at - before <= GAP_POINTS * range.width;
      path += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      dots.push(node("circle", { cx: x(at), cy: y(value), r: 3, class: one.kind }, node("title", {}, `${clock(point.start_at)} ${one.name}: ${short(value)} ${unit}`)));
      before = at;
    }
    svg.append(node("path", { d: path || "M0 0", class: `line ${one.kind}` }), ...dots);
  }
  box.replaceChildren(svg, element("ul", { class: "legend" }, ...series.map((one) => legendItem({ ...one, shown: "" }))));
}

/** Stacked columns over time; `parts(point)` gives [{ name, value, kind }]. */
function columns(box, label, unit, points, range, parts) {
  const sums = points.map((point) => parts(point).reduce((sum, part) => sum + part.value, 0));
  const { svg, x, y } = frame(label, unit, range, 0, ceiling(Math.max(0, ...sums)));
  const width = Math.max(1, x(range.from + range.width) - x(range.from) - 1.5);
  points.forEach((point, number) => {
    let below = 0;
    const column = node("g", {}, node("title", {}, `${clock(point.start_at)}: ${short(sums[number])} ${unit}`));
    for (const part of parts(point)) {
      const height = y(below) - y(below + part.value);
      if (height > 0) column.append(node("rect", { x: x(point.start_at), y: y(below + part.value), width, height, class: part.kind }));
      below += part.value;
    }
    svg.append(column);
  });
  box.replaceChildren(svg);
}

/** A table: `columns` are [title, function from row to text]; all but the first `left` columns are numbers. */
function table(box, caption, rows, columns, left = 1) {
  const cell = (tag, text, number, more = {}) => element(tag, { ...more, class: number >= left ? "number" : "" }, text);
  box.replaceChildren(element("table", {},
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...columns.map(([title], number) => cell("th", title, number, { scope: "col" })))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...columns.map(([, of], number) =>
      number === 0 ? cell("th", of(row), number, { scope: "row" }) : cell("td", of(row), number)))))));
}
