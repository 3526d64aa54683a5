/** Which server leads, and how far behind the object store and this server are. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { ago, bytes, count, duration, millis, moment } from "../format.js";
import { badge, empty, facts, head, number, panel, table, timeColumn } from "../ui.js";

export async function replicas() {
  const { replicates, state, logs } = await get("/replicas");
  if (!replicates || !state) {
    return [head("Replicas"), panel("Replicas", empty("This server does not replicate",
      "Start it with ", h("code", "--replicate URL"), ", and a second one elsewhere with the same URL."))];
  }
  const tone = state.problem ? "bad" : state.role === "leader" ? "good" : "";
  const roles = facts([
    ["This server", badge(state.role, tone)],
    ["Leader", state.leader || "none yet"],
    ["Behind", duration(state.lag_ms)],
    ["Standbys", state.role === "leader" ? count(state.standbys.length) : "–"],
    ["Lease renewed", state.last_put_ms ? h("span", { title: moment(state.last_put_ms) }, ago(state.last_put_ms)) : "–"],
    ["Last takeover", state.takeover_ms ? millis(state.takeover_ms) : "–"],
  ]);
  const problem = state.problem ? h("p.body", { role: "alert" }, badge("problem", "bad"), " ", state.problem) : null;
  return [
    head("Replicas", { sub: state.role === "leader" ? "This server leads" : `${state.leader || "Nobody"} leads` }),
    panel("Roles", [problem, roles]),
    panel("Logs", logs.length ? table("Logs", [
      { title: "Broker", cell: (row) => h("span.row", h("span.dot", { class: row.broker }), row.broker) },
      number("Next object", (row) => row.number),
      number("Waiting", (row) => row.lag_ms, { format: duration }),
      number("Waiting bytes", (row) => row.lag_bytes, { format: bytes }),
      number("Puts", (row) => row.puts),
      number("Failed puts", (row) => row.put_failures, { alarm: (row) => row.put_failures > 0 }),
      number("A put takes", (row) => row.put_ms, { format: millis, class: "hide-s" }),
      timeColumn("Last put", (row) => row.last_put_ms),
    ], logs, { key: (row) => row.broker }) : empty("A standby ships nothing", "The leader's dashboard shows its logs.")),
  ];
}
