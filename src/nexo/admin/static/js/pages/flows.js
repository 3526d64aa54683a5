/** Streams and tables as the flows of users' code connect them: each to the right of what fills it. */

import { h } from "../dom.js";
import { ago, count, duration, plural } from "../format.js";
import { href } from "../router.js";
import { badge, number, panel, table } from "../ui.js";

const STATES = { running: "good", idle: "good", failed: "bad", held: "warn", waiting: "" };
const WIDTH = 190, HEIGHT = 34, GAP_X = 70, GAP_Y = 14;

/** The graph, and a line for each flow. */
export function flows(rows) {
  return [panel("Your flows", h("div.scroll", drawn(rows))), panel("Flows", lines(rows))];
}

/** How many steps a stream or table is away from the streams that it comes from. */
function depths(rows) {
  const found = new Map(rows.flatMap((row) => [row.target, ...row.reads]).map((name) => [name, 0]));
  for (let turn = 0; turn < rows.length; turn++) {
    for (const row of rows) {
      found.set(row.target, Math.max(found.get(row.target), ...row.reads.map((name) => found.get(name) + 1)));
    }
  }
  return found;
}

function drawn(rows) {
  const places = new Map(), columns = new Map();
  for (const [name, depth] of depths(rows)) {
    const row = columns.get(depth) ?? 0;
    columns.set(depth, row + 1);
    places.set(name, { x: depth * (WIDTH + GAP_X) + 1, y: row * (HEIGHT + GAP_Y) + 1 });
  }
  const width = Math.max(...columns.keys()) * (WIDTH + GAP_X) + WIDTH + 2;
  const height = Math.max(...columns.values()) * (HEIGHT + GAP_Y);
  const text = `${plural(rows.length, "flow")}: ${rows.map((row) => `${row.reads.join(", ")} to ${row.target}`).join("; ")}`;
  return h("svg.flows", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text },
    rows.flatMap((row) => row.reads.map((name) => edge(places.get(name), places.get(row.target), row))),
    [...places].map(([name, place]) => box(name, place, rows.filter((row) => row.target === name))));
}

function edge(from, to, row) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  return h("path", { class: `edge ${STATES[row.state] ?? ""}`, d: `M${x1} ${y1}C${x1 + GAP_X / 2} ${y1} ${x2 - GAP_X / 2} ${y2} ${x2} ${y2}` });
}

function box(name, { x, y }, into) {
  const worst = ["failed", "held", "waiting", "running", "idle"].find((state) => into.some((row) => row.state === state));
  const label = name.length > 24 ? `${name.slice(0, 23)}…` : name;
  return h("g", { class: `node ${into.length ? STATES[worst] : "source"}` },
    h("title", into.length ? `${name}: ${worst}, ${plural(into[0].records, "row")}` : name),
    h("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 6 }), h("text", { x: x + 12, y: y + HEIGHT / 2 + 4 }, label));
}

function lines(rows) {
  return table("Flows", [
    { title: "Flow", class: "name", cell: (row) => row.flow, tip: (row) => row.place },
    ...(rows.some((row) => row.target !== row.flow) ? [{ title: "Fills", class: "mono hide-s", cell: (row) => row.target, tip: (row) => row.kind }] : []),
    { title: "State", cell: (row) => badge(row.state, STATES[row.state]) },
    ...(rows.some((row) => row.error) ? [{ title: "Error", class: "why", cell: (row) => row.error }] : []),
    number("Rows", (row) => row.rows, { class: rows.some((each) => each.error) ? "hide-s" : "" }), number("Dropped", (row) => row.dropped, { class: "hide-s", alarm: (row) => row.dropped > 0 }),
    number("Behind", (row) => row.behind, { class: "hide-s" }),
    { title: "Last batch", class: "hide-s", cell: (row) => (row.batches ? `${plural(row.last_rows, "row")} in ${duration(row.last_ms)}` : "–") },
    { title: "Last commit", class: "hide-s", cell: (row) => (row.committed_ms ? ago(row.committed_ms) : "–") },
    ...(rows.some((row) => row.waiting) ? [{ title: "Waiting", class: "hide-s", cell: (row) => (row.waiting ? `${plural(row.waiting, "change")}, ${ago(row.waiting_since_ms)}` : "–"), tip: () => "Changes to be merged into the table's rows; SQL inside Nexo shows them already" }] : []),
    number("In the table", (row) => row.records, { class: "hide-s" }), number("Small files", (row) => row.small_files, { class: "hide-s" }),
  ], rows, { key: (row) => row.flow });
}
