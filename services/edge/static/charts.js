"use strict";
// Charts as SVG: their text is text, their colours follow the style sheet, and each has its numbers in a table below.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190, LEFT = 44, RIGHT = 6, TOP = 18, BOTTOM = 20; // of a chart over time, in pixels
const LEAST_WIDTH = 240;
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

function whole(value) {
  return value.toLocaleString();
}

/** A measured number with about three digits. */
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

/** Values for the lines of an axis: round ones, about three of them, around all values. */
function ticks(least, most) {
  if (most <= 0 && least >= 0) return ticks(0, 1);
  const span = Math.max(most, 0) - Math.min(least, 0);
  const unit = 10 ** Math.floor(Math.log10(span / 3));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * unit >= span / 3) * unit;
  const found = [];
  for (let number = Math.floor(Math.min(least, 0) / step + 0.01); number < Math.max(most, 0) / step + 0.99 || number < 1; number++) found.push(number * step);
  return found;
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

/** Axes as wide as the box, and functions from time and value to places. */
function frame(box, label, unit, range, least, most) {
  const width = Math.max(LEAST_WIDTH, box.clientWidth);
  const values = ticks(least, most), low = values[0], high = values.at(-1);
  const x = (at) => LEFT + (width - LEFT - RIGHT) * (at - range.from) / Math.max(1, range.to - range.from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low);
  const svg = node("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, class: "chart", role: "img", "aria-label": label });
  for (const value of values) {
    svg.append(node("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: value === 0 ? "axis" : "grid" }),
      node("text", { x: LEFT - 6, y: y(value) + 4, class: "tick end" }, tickText(value)));
  }
  for (const share of [0, 0.5, 1]) {
    const at = range.from + share * (range.to - range.from);
    const anchor = share === 0 ? "" : share === 1 ? " end" : " middle";
    svg.append(node("text", { x: x(at), y: HEIGHT - 4, class: `tick${anchor}` }, clock(at)));
  }
  svg.append(node("text", { x: 0, y: 9, class: "unit" }, unit));
  return { svg, x, y };
}

function tickText(value) {
  return Math.abs(value) >= 1e4 ? short(value) : String(Number(value.toPrecision(3)));
}

/**
 * Lines over time. `series`: [{ name, shown, kind, of }], where `of(point)` gives a value or null; `range`: { from, to, width }.
 */
function lines(box, label, unit, points, range, series) {
  const all = points.flatMap((point) => series.map((one) => one.of(point))).filter((value) => value !== null);
  const { svg, x, y } = frame(box, label, unit, range, Math.min(0, ...all), Math.max(0, ...all));
  for (const one of series) {
    let path = "", before = null;
    const dots = [];
    for (const point of points) {
      const value = one.of(point);
      if (value === null) { before = null; continue; }
      const at = point.start_at + range.width / 2;
      const joined = before !== null && at - before <= GAP_POINTS * range.width;
      path += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      dots.push(node("circle", { cx: x(at), cy: y(value), r: box.clientWidth < 400 ? 1.2 : 2, class: one.kind }, node("title", {}, `${clock(point.start_at)} ${one.name}: ${short(value)} ${unit}`)));
      before = at;
    }
    svg.append(node("path", { d: path || "M0 0", class: `line ${one.kind}` }), ...dots);
  }
  box.replaceChildren(svg, element("ul", { class: "legend" }, ...series.map(legendItem)));
}

/** Stacked columns over time; `parts(point)` gives [{ name, value, kind }]. */
function columns(box, label, unit, points, range, parts) {
  const sums = points.map((point) => parts(point).reduce((sum, part) => sum + part.value, 0));
  const { svg, x, y } = frame(box, label, unit, range, 0, Math.max(0, ...sums));
  const width = Math.max(1, x(range.from + range.width) - x(range.from) - 1);
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
