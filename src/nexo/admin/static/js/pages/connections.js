/** Who is connected to which broker. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { bytes, plural } from "../format.js";
import { refine } from "../router.js";
import { badge, empty, head, number, pager, panel, search, segments, table, timeColumn } from "../ui.js";

const LIMIT = 100;
const BROKERS = [["", "All"], ["store", "Store"], ["pubsub", "Pub/Sub"], ["queue", "Queue"], ["stream", "Stream"]];

const protocol = (row) => (row.dialect === "kafka" ? badge("Kafka", "good") : row.hello ? badge("Nexo", "good") : badge("classic"));

function protocolTip(row) {
  if (row.dialect === "kafka") return "Kafka's protocol";
  return row.hello ? "The protocol with all of Nexo's additions" : "The first protocol, as the TypeScript client speaks it";
}

export async function connections({ given, memory, redraw }) {
  memory.offset ??= 0;
  const broker = given.broker ?? "";
  const page = await get("/connections", { broker, search: given.search, limit: LIMIT, offset: memory.offset });
  const find = (text) => { memory.offset = 0; refine({ search: text }); };
  const body = page.connections.length ? table("Connections", [
    { title: "Client", class: "name", cell: (row) => [row.name, row.internal ? [" ", badge("internal")] : null], tip: (row) => row.name },
    { title: "Broker", cell: (row) => h("span.row", h("span.dot", { class: row.broker }), row.broker) },
    { title: "Address", class: "mono hide-s", cell: (row) => row.address },
    ...(page.connections.some((row) => row.user) ? [{ title: "User", class: "hide-s", cell: (row) => row.user ?? "–" }] : []),
    timeColumn("Since", (row) => row.opened_ms),
    timeColumn("Last heard", (row) => row.heard_ms, "hide-s"),
    number("Requests", (row) => row.requests),
    number("Received", (row) => row.bytes_in, { format: bytes, class: "hide-s" }),
    number("Sent", (row) => row.bytes_out, { format: bytes, class: "hide-s" }),
    number("In flight", (row) => row.in_flight, { class: "hide-s" }),
    number("Unsent", (row) => row.unsent_bytes, { format: bytes, alarm: (row) => row.slow }),
    { title: "Protocol", class: "hide-s", cell: protocol, tip: protocolTip },
  ], page.connections, { key: (row) => `${row.broker}/${row.id}` }) : empty("No matching connections");
  return [
    head("Connections", { sub: plural(page.total, "connection"), actions: [segments("Broker", BROKERS, broker, (chosen) => { memory.offset = 0; refine({ broker: chosen }); })] }),
    panel("Connections", [body, pager(memory.offset, LIMIT, page.total, (to) => { memory.offset = to; redraw(); })],
      search("Name, address or user", given.search ?? "", find)),
  ];
}
