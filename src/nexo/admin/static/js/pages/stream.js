/** Streams: the list, and one stream with its records, partitions, groups and options. */

import { get, post } from "../api.js";
import { sparkline, summary } from "../charts.js";
import { form } from "../dialogs.js";
import { h } from "../dom.js";
import { ago, bytes, count, duration, localInput, moment, plural, rate } from "../format.js";
import { options } from "../options.js";
import { permissions } from "../permissions.js";
import { href, refine } from "../router.js";
import { badge, brief, button, empty, head, number, panel, search, table, tabs, timeColumn } from "../ui.js";
import { groups } from "./groups.js";
import { list, remove } from "./list.js";
import { inspect } from "./records.js";

const LIMIT = 50;
const MERGED = 256;

export async function stream(context) {
  return context.given.name ? one(context) : all(context);
}

// -- the list

function all(context) {
  return list("stream", context, [
    { title: "Stream", class: "name", sort: "name", cell: (row) => h("a", { href: href("stream", { name: row.name }) }, row.name), tip: (row) => row.name },
    { title: "Published, last minute", class: "hide-s", cell: (row) => sparkline(row.published, "stream") },
    number("In/s", (row) => row.published_per_s, { format: rate, sort: "activity" }),
    number("Offsets", (row) => row.offsets, { sort: "offsets" }),
    number("Size", (row) => row.bytes, { format: bytes, class: "hide-s", sort: "bytes" }),
    number("Partitions", (row) => row.partitions, { class: "hide-s" }),
    number("Groups", (row) => row.groups.length, { class: "hide-s" }),
    number("Lag", (row) => row.lag, { sort: "lag" }),
    timeColumn("Last record", (row) => row.last_ms, "hide-s"),
  ], (row) => row.name, "orders");
}

// -- one stream

async function one({ given, memory, redraw }) {
  const name = given.name;
  const tab = given.tab ?? "records";
  const info = await get("/stream/info", { stream: name });
  const lacks = await permissions("stream", name);
  const offsets = info.partitions.reduce((sum, part) => sum + part.next_offset - part.start_offset, 0);
  const size = info.partitions.reduce((sum, part) => sum + part.size_bytes, 0);
  const draw = { records: browse, partitions, groups, options: settings }[tab] ?? browse;
  return [
    head(name, {
      crumbs: [{ text: "Streams", href: href("stream") }],
      actions: [
        button("Publish", () => publish(name), { kind: "primary", lacks: lacks("write") }),
        ...(info.options.cleanup.includes("compact") ? [button("Compact", () => compact(name), { lacks: lacks("admin") })] : []),
        button("Delete", () => remove("stream", name, "All its records and groups are deleted."), { kind: "danger", lacks: lacks("admin") }),
      ],
    }),
    summary([
      ["Offsets", count(offsets)], ["Size", bytes(size)], ["In/s", rate(info.published_per_s)],
      ["Partitions", count(info.partitions.length)], ["Groups", count(info.groups.length)], ["Lag", count(info.lag)],
      ["Last record", ago(Math.max(...info.partitions.map((part) => part.last_ms)))], ["Kept for", kept(info.options)], ["Created", ago(info.created_ms)],
    ], "Records per second", [{ name: "published", tone: "stream", points: info.published }]),
    tabs("Stream", [["records", "Records"], ["groups", "Groups", info.groups.length], ["partitions", "Partitions and tiers"], ["options", "Options"]],
      tab, (id) => href("stream", { name, tab: id })),
    await draw({ given, memory, redraw, info, name, lacks }),
  ];
}

function kept({ cleanup, retention_ms: ms, retention_bytes: size }) {
  if (!cleanup.includes("delete")) return "per key";
  return ms ? duration(ms).replace(/ 0 [a-z]+$/, "") : size ? bytes(size) : "forever";
}

function compact(name) {
  form(`Compact ${name}?`, [], "Compact", async () => {
    const { count: freed } = await post("/stream/compact", { stream: name });
    return `Freed ${bytes(freed)}`;
  }, { message: "Only the newest record of each key is kept, at its offset. The others are deleted for good." });
}

function publish(name) {
  form("Publish a record", [
    { name: "value", type: "value" },
    { name: "key", label: "Key", hint: "Records of one key are stored in order" },
    { name: "headers", label: "Headers, as JSON", type: "json", placeholder: '{"source": "dashboard"}' },
  ], "Publish", async (given) => {
    const place = await post("/stream/publish", { ...given, stream: name });
    return `Published to partition ${place.partition} at offset ${place.offset}`;
  });
}

// -- records

/** Records of one partition or all, in the order of time; the address says from where. */
async function browse({ given, name, info }) {
  const partition = given.partition ?? (info.partitions.length > MERGED ? "0" : undefined);
  const many = info.partitions.length > 1 && partition === undefined;
  const place = given.cursor ? { cursor: given.cursor, direction: given.direction }
    : given.time ? { time_ms: Number(given.time) } : { offset: given.offset };
  const page = await get("/stream/records", { stream: name, partition, key: given.key, ...place, limit: LIMIT });
  const go = (more) => refine({ offset: "", time: "", cursor: "", direction: "", ...more });
  const body = page.records.length ? table("Records", [
    ...(many ? [number("Partition", (row) => row.partition, { format: String, class: "hide-s" })] : []),
    { title: "Offset", class: "num", cell: (row) => button(count(row.offset), () => inspect(name, row), { small: true, kind: "link", label: many ? `Show record ${row.partition}:${row.offset}` : `Show record ${row.offset}` }) },
    { title: "Time", class: "hide-s", cell: (row) => moment(row.timestamp_ms) },
    { title: "Key", class: page.records.some((row) => row.key) ? "mono name" : "mono hide-s", cell: (row) => row.key ?? "–", tip: (row) => row.key },
    { title: "Value", class: "value", cell: (row) => brief(row.value) },
    { title: "Headers", class: "hide-s", cell: (row) => named(row.headers), tip: (row) => JSON.stringify(row.headers) },
    number("Size", (row) => row.value.size_bytes, { format: bytes, class: "hide-s" }),
  ], page.records, { key: (row) => `${row.partition}:${row.offset}` }) : nothing(page, given, info);
  const turn = h("div.pager", h("span", shownPlaces(page, given, info)),
    h("div.right",
      button("Oldest", () => go({ offset: "0" }), { small: true }),
      button("Earlier", () => go({ cursor: page.earlier, direction: "earlier" }), { small: true, disabled: page.first }),
      button("Later", () => go({ cursor: page.later, direction: "later" }), { small: true, disabled: page.last }),
      button("Newest", () => go({}), { small: true })));
  return panel("Records", [body, turn], places(info, partition, given, go));
}

/** How many headers a record has, or the name of its only one. */
function named(given) {
  if (typeof given === "string") return given;
  const names = Object.keys(given ?? {});
  return names.length > 1 ? plural(names.length, "header") : names[0] ?? "";
}

function nothing(page, given, info) {
  if (info.partitions.every((part) => part.next_offset <= part.start_offset)) return empty("This stream is empty", "Publish a record here, or with client.stream(…).publish(…).");
  if (!given.key) return empty("No records here", "There is nothing at or after this place.");
  const on = page.first && page.last ? "" : "Press Earlier or Later to continue the search.";
  return empty("No record of this key", `among the ${count(page.scanned)} records looked at. ${on}`);
}

function shownPlaces({ records, scanned }, given, info) {
  const parts = given.partition === undefined ? info.partitions : [info.partitions[Number(given.partition)]];
  if (given.key) return `${plural(records.length, "record")} of this key among ${count(scanned)}`;
  if (parts.length > 1) return `${plural(records.length, "record")} of ${plural(parts.length, "partition")}, by time`;
  const [{ start_offset: start, stable_offset: end }] = parts;
  if (end <= start) return "This partition is empty";
  const all = `${count(start)}–${count(end - 1)}`;
  return records.length ? `Offsets ${count(records[0].offset)}–${count(records.at(-1).offset)} of ${all}` : `Offsets ${all}`;
}

function places(info, partition, given, go) {
  const all = info.partitions.length <= MERGED ? [h("option", { value: "", selected: partition === undefined }, "All partitions")] : [];
  const choose = info.partitions.length > 1 ? h("select.short", { "aria-label": "Partition", onchange: (event) => go({ partition: event.target.value }) },
    all, info.partitions.map((part) => h("option", { value: part.partition, selected: String(part.partition) === partition }, `Partition ${part.partition}`))) : null;
  const offset = h("input.short", { type: "number", min: 0, placeholder: "Offset", "aria-label": "Go to offset", value: given.offset ?? "",
    onchange: (event) => go({ offset: event.target.value }) });
  const time = h("input.short", { type: "datetime-local", step: 1, "aria-label": "Go to time", value: given.time ? localInput(Number(given.time)) : "",
    onchange: (event) => { if (event.target.value) go({ time: String(new Date(event.target.value).getTime()) }); } });
  return [search("Key", given.key ?? "", (key) => go({ key })), choose, offset, time];
}

// -- partitions and options

function partitions({ info }) {
  return panel("Partitions and tiers", table("Partitions", [
    number("Partition", (part) => part.partition, { format: String }),
    number("First offset", (part) => part.start_offset), number("Next offset", (part) => part.next_offset),
    number("Size", (part) => part.size_bytes, { format: bytes }),
    { title: "Location", cell: bar },
    { title: "Tiers", class: "hide-s", cell: (part) => part.tiers.map((tier) => [badge(`${tier.tier} ${count(tier.first)}–${count(tier.end)}`), " "]) },
    timeColumn("Last record", (part) => part.last_ms, "hide-s"),
  ], info.partitions, { key: (part) => part.partition }));
}

function bar(part) {
  const total = Math.max(1, part.next_offset);
  const lake = part.tiers.find((tier) => tier.tier === "lake")?.end ?? 0;
  const part_ = (name, from, to) => (to > from ? h(`i.${name}`, { style: { width: `${((to - from) / total) * 100}%` } }) : null);
  const text = part.tiers.map((tier) => `${tier.tier} ${tier.first} to ${tier.end}`).join(", ");
  return h("div.bar", { role: "img", "aria-label": text }, part_("lake", 0, Math.min(lake, part.start_offset)), part_("hot", part.start_offset, part.next_offset));
}

function settings({ info, name, lacks }) {
  return options("stream", name, info.options, lacks("admin"));
}
