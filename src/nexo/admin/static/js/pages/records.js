/** One record of a stream, whole. */

import { get } from "../api.js";
import { show } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, moment } from "../format.js";
import { staying } from "../router.js";
import { badge, facts, headers, nameColumn, table, toast, value } from "../ui.js";

const STATES = {
  unread: ["not delivered yet", ""], in_flight: ["delivered, not acked yet", "accent"], delayed: ["waits for its retry", "warn"],
  waiting: ["to be delivered again", "warn"], parked: ["parked", "bad"], finished: ["finished", "good"],
};

/** Which groups got the record, and what they did with it. */
function trail(groups) {
  if (!groups.length) return h("p.message", "No group reads this stream.");
  return h("div", h("h3", "Groups"), table("Groups of this record", [
    nameColumn("Group", (row) => row.group),
    { title: "State", cell: (row) => badge(...STATES[row.state]), tip: (row) => row.reason },
    { title: "Consumer or reason", class: "value hide-s", cell: (row) => row.consumer ?? (row.reason || "–"), tip: (row) => row.reason },
    { title: "Attempts", class: "num hide-s", cell: (row) => (row.attempts ? String(row.attempts) : "–") },
    { title: "When", class: "hide-s", cell: (row) => (row.until_ms ? `until ${moment(row.until_ms)}` : row.parked_ms ? moment(row.parked_ms) : "–") },
  ], groups, { key: (row) => `${row.mode}/${row.group}` }));
}

/** `parked`: why and when a group set it aside. */
export async function inspect(stream, { partition, offset }, parked) {
  const still = staying();
  try {
    const [whole, trace] = await Promise.all([
      get("/stream/record", { stream, partition, offset }),
      get("/stream/trace", { stream, partition, offset }).catch(() => ({ groups: [] })),
    ]);
    if (!still()) return;
    show(`Record ${partition}:${offset}`, [
      facts([["Time", moment(whole.timestamp_ms)], ["Key", whole.key ?? "–"], ["Size", bytes(whole.value.size_bytes)], ["Type", whole.value.type],
        ...(parked ? [["Parked", moment(parked.parked_ms)], ["Attempts", count(parked.attempts)]] : [])]),
      parked?.reason ? h("div", h("h3", "Reason"), value({ type: "text", text: parked.reason })) : null,
      value(whole.value), headers(whole.headers), trail(trace.groups),
    ], { wide: true });
  } catch (error) {
    toast(error.message, true);
  }
}
