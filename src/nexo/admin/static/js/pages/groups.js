/** The groups of a stream: lag, parked records, seek. */

import { get, post } from "../api.js";
import { sparkline } from "../charts.js";
import { confirm, form } from "../dialogs.js";
import { h } from "../dom.js";
import { count, duration, rate, unescaped } from "../format.js";
import { permissions } from "../permissions.js";
import { href } from "../router.js";
import { inspect } from "./records.js";
import { badge, brief, button, empty, facts, number, pager, panel, table, timeColumn } from "../ui.js";

export async function groups({ given, memory, redraw, name }) {
  const rows = await get("/stream/groups", { stream: name });
  const lack = (await permissions("stream", name))("admin");
  const chosen = rows.find((group) => group.name === given.group) ?? (rows.length === 1 ? rows[0] : undefined);
  if (!rows.length) return panel("Groups", empty("No groups", "A group appears when its first consumer joins."));
  return h("div.stack", list(rows, name, chosen, lack), chosen ? await detail(chosen, name, memory, redraw, lack) : null);
}

function list(rows, stream, chosen, lack) {
  return panel("Groups", table("Groups", [
    { title: "Group", class: "name", cell: (group) => h("a", { href: href("stream", { name: stream, tab: "groups", group: group.name }) }, unescaped(group.name)), tip: (group) => group.name },
    { title: "Kind", class: "hide-s", cell: (group) => badge(group.kafka ? "Kafka" : group.mode) },
    { title: "Lag, last minute", class: "hide-s", cell: (group) => sparkline(group.lags, "stream") },
    number("Lag", (group) => group.lag),
    number("Out/s", (group) => group.finished_per_s, { format: rate, class: "hide-s" }),
    number("In work", (group) => group.in_flight, { class: "hide-s" }),
    number("Parked", (group) => group.parked, { alarm: (group) => group.parked > 0 }),
    number("Consumers", (group) => group.consumers.length, { class: "hide-s" }),
    { title: "", class: "acts", cell: (group) => [
      button("Seek", () => seek(stream, group), { small: true, label: `Seek ${group.name}` }),
      button("Delete", () => remove(stream, group), { small: true, kind: "danger", label: `Delete group ${group.name}`, lacks: lack }),
    ] },
  ], rows, { key: (group) => `${group.mode}/${group.name}`, chosen: (group) => group === chosen }));
}

async function detail(group, stream, memory, redraw, lack) {
  return [
    panel(`Group ${unescaped(group.name)}, by partition`, [
      h("div.body", facts([["Generation", count(group.generation)], ...(group.kafka ? [["State", group.kafka.state], ["Assignor", group.kafka.assignor || "none"]] : [["Consumers", group.consumers.join(", ") || "none"]]),
        ...Object.entries(group.kafka ? {} : group.options).filter(([, set]) => set !== null).map(option)])),
      table("By partition", [
        number("Partition", (row) => row.partition, { format: String }), number("Finished below", (row) => row.floor, { class: "hide-s" }),
        number("End", (row) => row.next_offset), number("Lag", (row) => row.lag), number("In work", (row) => row.in_flight),
        number("To redeliver", (row) => row.to_redeliver, { class: "hide-s" }), number("Parked", (row) => row.parked),
        ...(group.mode === "ordered" ? [{ title: "Owner", cell: (row) => row.owner ?? "–" }] : []),
      ], group.partitions, { key: (row) => row.partition }),
    ]),
    group.kafka ? members(group) : null,
    group.parked ? await parked(group, stream, memory, redraw, lack) : null,
  ];
}

function members(group) {
  const lag = (member) => group.partitions.filter((row) => row.owner === member.id).reduce((sum, row) => sum + row.lag, 0);
  return panel("Kafka clients", table("Kafka clients", [
    { title: "Client id", class: "name", cell: (member) => member.client_id || "–", tip: (member) => member.id },
    { title: "Host", class: "mono", cell: (member) => member.host },
    { title: "Instance", class: "hide-s", cell: (member) => member.instance ?? "–" },
    { title: "Partitions", cell: (member) => member.partitions.join(", ") || "none" },
    number("Lag", lag),
  ], group.kafka.members, { key: (member) => member.id }));
}

function option([key, set]) {
  if (key.endsWith("_ms")) return [key.slice(0, -3).replaceAll("_", " "), duration(set)];
  return [key.replaceAll("_", " "), typeof set === "number" ? count(set) : String(set)];
}

async function parked(group, stream, memory, redraw, lack) {
  memory.parkedAt ??= 0;
  const page = await get("/stream/parked", { stream, group: group.name, limit: 50, offset: memory.parkedAt });
  const which = (records) => (records ? "this parked record" : `all ${count(page.total)} parked records`);
  const replay = (records) => () => form(`Replay ${which(records)}?`, [], "Replay", async () => {
    const { count: done } = await post("/stream/parked/replay", { stream, group: group.name, records });
    return `Replayed ${count(done)}`;
  }, { message: "It is delivered again." });
  const drop = (records) => () => confirm(`Delete ${which(records)}?`, "The group never gets it again. It stays in the stream.", "Delete", async () => {
    const { count: done } = records ? await post("/stream/parked/delete", { stream, group: group.name, records }) : await post("/stream/parked/purge", { stream, group: group.name });
    return `Deleted ${count(done)}`;
  });
  return panel("Parked records", [table("Parked records", [
    number("Partition", (row) => row.record.partition, { format: String, class: "hide-s" }), { title: "Offset", class: "num", cell: (row) => button(count(row.record.offset), () => inspect(stream, row.record, row), { small: true, kind: "link", label: `Show record ${row.record.offset}` }) },
    { title: "Value", class: "value", cell: (row) => brief(row.record.value) },
    { title: "Reason", class: "value reason", cell: (row) => row.reason || "–", tip: (row) => row.reason }, number("Attempts", (row) => row.attempts, { class: "hide-s" }),
    timeColumn("Parked", (row) => row.parked_ms, "hide-s"),
    { title: "", class: "acts", cell: ({ record }) => {
      const one = [{ partition: record.partition, offset: record.offset }];
      return [
        button("Replay", replay(one), { small: true, label: `Replay record ${record.offset}`, lacks: lack }),
        button("Delete", drop(one), { small: true, kind: "danger", label: `Delete record ${record.offset}`, lacks: lack }),
      ];
    } },
  ], page.records, { key: (row) => `${row.record.partition}:${row.record.offset}` }),
  pager(memory.parkedAt, 50, page.total, (to) => { memory.parkedAt = to; redraw(); })],
  button("Replay all", replay(null), { small: true, lacks: lack }),
  button("Delete all", drop(null), { small: true, kind: "danger", lacks: lack }));
}

function seek(stream, group) {
  form(`Seek ${group.name}`, [
    { name: "to", label: "Continue from", type: "select", value: "beginning", wide: true, options: [["beginning", "The beginning"], ["end", "The end"], ["offset", "An offset"], ["time", "A time"]] },
    { name: "offset", label: "Offset (in every partition)", type: "number", min: 0 },
    { name: "time", label: "Time", type: "datetime-local", step: 1 },
  ], "Seek", async (given) => {
    const place = {
      offset: () => ({ offset: given.offset ?? 0 }),
      time: () => ({ time_ms: new Date(given.time ?? 0).getTime() }),
    }[given.to]?.() ?? { to: given.to };
    await post("/stream/seek", { stream, group: group.name, mode: group.mode, ...place });
    return `${group.name} continues from there`;
  }, { message: "Running consumers continue from the new place. Acknowledgements from before are refused.", danger: true });
}

function remove(stream, group) {
  confirm("Delete this group?", `The position of ${group.name} is deleted too.`, "Delete", async () => {
    await post("/stream/group/delete", { stream, group: group.name, mode: group.mode });
    return `Deleted ${group.name}`;
  });
}
