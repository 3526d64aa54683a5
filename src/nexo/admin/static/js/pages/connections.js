/** Who is connected to which broker. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, plural } from "../format.js";
import { href, refine } from "../router.js";
import { badge, empty, head, number, pager, panel, search, segments, table, timeColumn } from "../ui.js";

const LIMIT = 100;
const BROKERS = [["", "All"], ["store", "Store"], ["pubsub", "Pub/Sub"], ["queue", "Queue"], ["stream", "Stream"]];

const protocol = (row) => (row.dialect === "kafka" ? badge("Kafka", "good") : row.hello ? badge("Nexo", "good") : badge("classic"));

function protocolTip(row) {
  if (row.dialect === "kafka") return "Kafka's protocol";
  return row.hello ? "The protocol with all of Nexo's additions" : "The first protocol, as the TypeScript client speaks it";
}

const VIEWS = [["", "Applications"], ["single", "Connections"]];

export async function connections({ given, memory, redraw }) {
  memory.offset ??= 0;
  const [broker, view] = [given.broker ?? "", given.view ?? ""];
  const asked = { broker, search: given.search, limit: LIMIT, offset: memory.offset };
  const again = (wanted) => { memory.offset = 0; refine(wanted); };
  const { rows, total, noun, drawn } = view ? await single(asked) : await applications(asked);
  return [
    head("Connections", { sub: plural(total, noun), actions: [segments("View", VIEWS, view, (chosen) => again({ view: chosen })), segments("Broker", BROKERS, broker, (chosen) => again({ broker: chosen }))] }),
    panel(view ? "Connections" : "Applications", [rows.length ? drawn : empty("No matching connections"), pager(memory.offset, LIMIT, total, (to) => { memory.offset = to; redraw(); })],
      search("Name, address or user", given.search ?? "", (text) => again({ search: text }))),
  ];
}

const user = (rows) => (rows.some((row) => row.user) ? [{ title: "User", class: "hide-s", cell: (row) => row.user ?? "–" }] : []);
const traffic = [
  number("Requests", (row) => row.requests, { class: "hide-s" }),
  number("Received", (row) => row.bytes_in, { format: bytes, class: "hide-s" }),
  number("Sent", (row) => row.bytes_out, { format: bytes, class: "hide-s" }),
  number("In flight", (row) => row.in_flight, { class: "hide-s" }),
  number("Unsent", (row) => row.unsent_bytes, { format: bytes, class: "hide-s", alarm: (row) => row.slow }),
];
const dots = (brokers) => h("span.row", brokers.map((name) => h("span.dot", { class: name, title: name, role: "img", "aria-label": name })));

/** What has one name and user, and comes from one host, is one application: a client has a connection to each broker that it uses. */
async function applications(asked) {
  const { clients: rows, total } = await get("/clients", asked);
  const drawn = table("Applications", [
    { title: "Client", class: "name", cell: (row) => [h("a", { href: href("connections", { view: "single", search: row.name }) }, row.name), row.internal ? [" ", badge("internal")] : null], tip: (row) => row.name },
    { title: "Host", class: "mono hide-s", cell: (row) => row.host },
    ...user(rows),
    { title: "Brokers", class: "hide-s", cell: (row) => dots(row.brokers), tip: (row) => row.brokers.join(", ") },
    number("Connections", (row) => row.connections),
    timeColumn("Since", (row) => row.opened_ms, "hide-s"),
    timeColumn("Last heard", (row) => row.heard_ms),
    ...traffic,
  ], rows, { key: (row) => `${row.name}/${row.host}/${row.user}` });
  return { rows, total, noun: "application", drawn };
}

async function single(asked) {
  const { connections: rows, total } = await get("/connections", asked);
  const drawn = table("Connections", [
    { title: "Client", class: "name", cell: (row) => [row.name, row.internal ? [" ", badge("internal")] : null], tip: (row) => row.name },
    { title: "Broker", cell: (row) => h("span.row", h("span.dot", { class: row.broker }), row.broker) },
    { title: "Address", class: "mono hide-s", cell: (row) => row.address },
    ...user(rows),
    timeColumn("Since", (row) => row.opened_ms),
    timeColumn("Last heard", (row) => row.heard_ms, "hide-s"),
    ...traffic,
    { title: "Protocol", class: "hide-s", cell: protocol, tip: protocolTip },
  ], rows, { key: (row) => `${row.broker}/${row.id}` });
  return { rows, total, noun: "connection", drawn };
}
