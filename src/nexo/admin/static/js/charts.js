/** Small charts as SVG. */

import { h } from "./dom.js";
import { rate } from "./format.js";
import { facts, panel } from "./ui.js";

/** The shape of recent numbers, without axes. */
export function sparkline(points, tone) {
  const known = points.map((point) => point ?? 0);
  if (!known.some(Boolean)) tone = "second";
  const [width, height] = [100, 30];
  const svg = h("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true", class: `c-${tone}` });
  if (known.length < 2) return svg;
  const top = Math.max(...known, 1e-9);
  const at = known.map((value, i) => [(i / (known.length - 1)) * width, height - 2 - (value / top) * (height - 5)]);
  const line = at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  svg.append(
    h("path.area", { d: `${line}L${width} ${height}L0 ${height}Z` }),
    h("path.line", { d: line, "vector-effect": "non-scaling-stroke" }),
  );
  return svg;
}

const WIDTH = 480;
const HEIGHT = 160;
const BOX = { left: 48, right: 4, top: 8, bottom: 20 };

/** Lines over time. `lines`: `[{name, tone, points}]`, newest last. */
export function chart(title, lines, seconds, endMs, format = rate) {
  const highest = Math.max(0, ...lines.flatMap((line) => line.points.map((point) => point ?? 0)));
  const top = niceTop(highest, format === rate ? 4 : 0.1);
  const longest = Math.max(2, ...lines.map((line) => line.points.length));
  const x = (i, length) => BOX.left + ((longest - length + i) / (longest - 1)) * (WIDTH - BOX.left - BOX.right);
  const y = (value) => HEIGHT - BOX.bottom - (value / top) * (HEIGHT - BOX.top - BOX.bottom);
  const newest = lines.map((line) => `${line.name} ${format(line.points.at(-1))}`).join(", ");
  const svg = h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${newest}` });
  for (const step of [0, 0.5, 1]) {
    svg.append(
      h("line.gridline", { x1: BOX.left, x2: WIDTH - BOX.right, y1: y(top * step), y2: y(top * step) }),
      h("text", { x: BOX.left - 7, y: y(top * step) + 3.5, "text-anchor": "end" }, format(top * step).replace(/\.0+(?=$| )/, "")),
    );
  }
  for (const share of [0, 0.25, 0.5, 0.75, 1]) svg.append(...tick(share, seconds, endMs));
  lines.forEach((line, index) => svg.append(...drawn(line, index, x, y)));
  hover(svg, lines, { x, longest, seconds, endMs, format });
  return h("div.chart", svg);
}

/** A mark on the time axis; all but the newest are times of day. */
function tick(share, seconds, endMs) {
  const at = BOX.left + share * (WIDTH - BOX.left - BOX.right);
  const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
  const text = share === 1 ? "now" : new Date(endMs - (1 - share) * seconds * 1000).toLocaleTimeString([], { hour12: false });
  return [
    h("line.tickmark", { x1: at, x2: at, y1: HEIGHT - BOX.bottom, y2: HEIGHT - BOX.bottom + 4 }),
    h("text", { class: share === 0.25 || share === 0.75 ? "wide-only" : undefined, x: at, y: HEIGHT - 4, "text-anchor": anchor }, text),
  ];
}

function drawn(line, index, x, y) {
  const marks = [];
  let open = null;
  line.points.forEach((point, i) => {
    if (point === null || point === undefined) open = null;
    else if (open) open.push([x(i, line.points.length), y(point)]);
    else marks.push((open = [[x(i, line.points.length), y(point)]]));
  });
  return marks.flatMap((run) => {
    const path = run.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    const area = `${path}L${run.at(-1)[0].toFixed(1)} ${y(0)}L${run[0][0].toFixed(1)} ${y(0)}Z`;
    const shapes = index === 0 ? [h("path.area", { class: `c-${line.tone}`, d: area })] : [];
    return [...shapes, h("path.line", { class: `c-${line.tone}`, d: path })];
  });
}

/** Handlers look at where they run, because `morph` moves them to the element on the page. */
function hover(svg, lines, { x, longest, seconds, endMs, format }) {
  const leave = (event) => {
    for (const mark of event.currentTarget.parentNode.querySelectorAll(".tip, .cross")) mark.remove();
  };
  const move = (event) => {
    leave(event);
    const here = event.currentTarget;
    const place = here.getBoundingClientRect();
    const inside = ((event.clientX - place.left) / place.width) * WIDTH;
    const i = Math.round(((inside - BOX.left) / (WIDTH - BOX.left - BOX.right)) * (longest - 1));
    if (i < 0 || i >= longest) return;
    const at = x(i, longest);
    const when = new Date(endMs - ((longest - 1 - i) / longest) * seconds * 1000);
    const tip = h("div.tip", when.toLocaleTimeString(),
      lines.map((line) => h("div", h("span", line.name), h("b", format(line.points[i - longest + line.points.length])))));
    here.append(h("line.cross", { x1: at, x2: at, y1: BOX.top, y2: HEIGHT - BOX.bottom }));
    here.parentNode.append(tip);
    tip.style.left = `${Math.min(Math.max(0, (at / WIDTH) * place.width + 10), place.width - tip.offsetWidth)}px`;
  };
  Object.assign(svg, { onpointerleave: leave, onpointermove: move, handlers: ["onpointerleave", "onpointermove"] });
}

export function legend(lines, format = rate) {
  return h("div.legend", lines.map((line) =>
    h("span", h("i", { class: `c-${line.tone}` }), line.name, h("b", format(line.points.at(-1))))));
}

function niceTop(value, least) {
  if (value <= least) return least;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** The facts of one thing, and beside them a chart of the last minute, newest last. */
export function summary(pairs, title, lines) {
  const longest = Math.max(2, ...lines.map((line) => line.points.length));
  return h("div.grid.summary", h("div.panel", h("div.body", facts(pairs, true))),
    panel(title, h("div.body", legend(lines), chart(title, lines, longest, Date.now()))));
}

const BAR = 22;

/** Named numbers as bars, `[[name, number]]`; those below zero go to the left of the line. */
export function bars(title, named, format) {
  const values = named.map(([, value]) => value);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const narrow = window.innerWidth <= 820;  // the text keeps its size where the chart shrinks
  const [left, right, width] = narrow ? [110, 80, WIDTH * 0.75] : [150, 70, WIDTH * 1.5];
  const longest = narrow ? 15 : 24;
  const x = (value) => left + ((value - low) / (high - low || 1)) * (width - left - right);
  const svg = h("svg", { viewBox: `0 0 ${width} ${named.length * BAR + 6}`, role: "img", "aria-label": `${title}: ${named.length} bars` });
  named.forEach(([name, value], i) => {
    const [from, to] = [x(Math.min(0, value)), x(Math.max(0, value))];
    svg.append(
      h("text", { x: left - 8, y: i * BAR + 17, "text-anchor": "end" }, name.length > longest ? `${name.slice(0, longest - 1)}…` : name, h("title", name)),
      h("rect.bar", { x: from, y: i * BAR + 5, width: Math.max(1, to - from), height: BAR - 7, rx: 2 }),
      h("text", { x: to + 6, y: i * BAR + 17 }, format(value)),
    );
  });
  return h("div.chart", svg);
}
