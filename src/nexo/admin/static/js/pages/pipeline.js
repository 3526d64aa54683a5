/** The lake behind the streams: pipelines, how fresh each table is, what failed. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { ago, bytes, count, duration, moment, plural } from "../format.js";
import { href } from "../router.js";
import { flows } from "./flows.js";
import { badge, empty, facts, head, nameColumn, number, panel, table, timeColumn } from "../ui.js";

const STATES = { running: "good", ended: "", silent: "bad" };

export async function pipeline({ given }) {
  return given.name ? one(given.name) : all();
}

// -- the lake

async function all() {
  const lake = await get("/pipeline/tables");
  const behind = lake.streams.reduce((sum, stream) => sum + stream.behind, 0);
  const dead = lake.streams.reduce((sum, stream) => sum + stream.dead_letters, 0);
  const running = lake.pipelines.filter((one_) => one_.state === "running").length;
  return [
    head("Pipeline", { sub: `Parquet and Iceberg in ${lake.place}` }),
    lake.streams.length ? h("div.panel", h("div.body", facts([
      ["Pipelines running", count(running), running ? "" : "alarm"], ["Streams", count(lake.streams.length)],
      ["Records in the lake", count(lake.streams.reduce((sum, stream) => sum + stream.records, 0))],
      ["Behind", count(behind)], ["Complete up to", late(Math.min(...lake.streams.map(({ fresh_ms: ms }) => ms ?? 0)))],
      ["Dead letters", count(dead), dead ? "alarm" : ""],
    ], true))) : null,
    lake.pipelines.filter((one_) => one_.error).map((one_) => h("div.failed", { role: "alert", "data-key": one_.id }, `${one_.id}, ${ago(one_.error_ms)}: ${one_.error}`)),
    lake.pipelines.length ? panel("Pipelines", pipelines(lake.pipelines)) : null,
    lake.streams.length ? panel("Streams", streams(lake.streams)) : null,
    lake.flows.length ? flows(lake.flows) : null,
    panel("Tables", lake.tables.length ? tables(lake.tables)
      : lake.loading ? empty("Reading the lake", "Its catalog is being opened.") : nothing(lake.reason || "No stream is in the lake: nexo pipeline run")),
  ];
}

/** Why there are no tables, and the one thing to type. */
function nothing(reason) {
  const [why, how] = reason.split(": ");
  return empty("No tables yet", `${why}. `, h("code", how));
}

/** Everything published before is in the lake. */
function late(ms) {
  return ms ? ago(ms) : "not yet";
}

function pipelines(rows) {
  return table("Pipelines", [
    nameColumn("Pipeline", (row) => row.id, "mono name"),
    { title: "State", cell: (row) => badge(row.state, STATES[row.state]) },
    timeColumn("Started", (row) => row.started_ms, "hide-s"),
    timeColumn("Last sign of life", (row) => row.updated_ms, "hide-s"),
    { title: "Every", class: "hide-s", cell: (row) => (row.every_ms ? duration(row.every_ms) : "once") },
    timeColumn("Maintained", (row) => row.maintained_ms, "hide-s"),
    number("Streams", (row) => row.streams.length, { class: "hide-s" }),
    number("Taken", (row) => row.taken, { class: "hide-s" }), number("Behind", (row) => row.behind),
  ], rows, { key: (row) => row.id });
}

function streams(rows) {
  return table("Streams", [
    { title: "Stream", class: "name", cell: (row) => h("a", { href: href("pipeline", { name: row.stream }) }, row.stream), tip: (row) => row.stream },
    { title: "Progress", class: "hide-s", cell: progress },
    number("In the lake", (row) => row.records, { class: "hide-s" }), number("Behind", (row) => row.behind),
    { title: "Complete up to", class: "hide-s", cell: (row) => (row.fresh_ms ? ago(row.fresh_ms) : "not yet"), tip: (row) => moment(row.fresh_ms) },
    { title: "Last run", class: "hide-s", cell: (row) => (row.batches ? `${plural(row.last_taken, "record")} in ${duration(row.last_ms)}` : "–") },
    number("Runs", (row) => row.batches, { class: "hide-s" }),
    number("Dead letters", (row) => row.dead_letters, { class: "hide-s", alarm: (row) => row.dead_letters > 0 }),
    { title: "State", cell: (row) => (row.error ? badge("failing", "bad") : row.behind ? badge("catching up", "warn") : badge("complete", "good")), tip: (row) => row.error || undefined },
  ], rows, { key: (row) => row.stream });
}

function progress(row) {
  const total = Math.max(1, row.records + row.behind);
  const share = Math.floor((row.records / total) * 1000) / 10;
  return h("span.lease", h("span.bar", { role: "img", "aria-label": `${share} percent` }, h("i.lake", { style: { width: `${share}%` } })), `${share} %`);
}

function tables(rows) {
  return table("Tables", [
    { title: "Table", class: "name mono", cell: (row) => h("a", { href: href("pipeline", { name: row.stream }) }, row.table), tip: (row) => row.table },
    { title: "Holds", class: "hide-s", cell: (row) => badge(row.kind, row.kind === "dead letters" ? "warn" : "") },
    number("Records", (row) => row.records), number("Files", (row) => row.files, { class: "hide-s" }),
    number("Size", (row) => row.bytes, { format: bytes }), number("Snapshots", (row) => row.snapshots, { class: "hide-s" }),
    timeColumn("Last commit", (row) => row.updated_ms),
  ], rows, { key: (row) => row.table });
}

// -- one stream

async function one(name) {
  const [{ table: row, derived, snapshots, progress: seen, contract: terms, loading }, { letters }] = await Promise.all([
    get("/pipeline/table", { stream: name }), get("/pipeline/dead-letters", { stream: name })]);
  return [
    head(name, { crumbs: [{ text: "Pipeline", href: href("pipeline") }], actions: [h("a.button", { href: href("stream", { name, tab: "partitions" }) }, "The stream")] }),
    seen?.error ? h("div.failed", { role: "alert" }, `${ago(seen.error_ms)}: ${seen.error}`) : null,
    h("div.panel", h("div.body", facts([
      ["Records", count(row.records)], ["Files", count(row.files)], ["Size", bytes(row.bytes)],
      ...(seen ? [["Behind", count(seen.behind)], ["Complete up to", seen.fresh_ms ? ago(seen.fresh_ms) : "not yet"],
        ["Dead letters", count(seen.dead_letters), seen.dead_letters ? "alarm" : ""], ["Lost races", count(seen.lost_races)]] : []),
      ["Last commit", ago(row.updated_ms)],
    ], true))),
    contract(terms),
    letters.length ? panel("Dead letters", refused(name, letters)) : null,
    panel("Tables", tables([row, ...derived])),
    panel("Taken so far", table("Offsets", [
      { title: "Partition", class: "num", cell: ([partition]) => partition }, number("Everything below", ([, end]) => end),
    ], Object.entries(row.offsets))),
    panel("Last runs", snapshots.length ? table("Snapshots", [
      timeColumn("Committed", (run) => run.committed_ms), { title: "What", cell: (run) => badge(run.operation) },
      number("Records added", (run) => run.added_records), number("Files added", (run) => run.added_files, { class: "hide-s" }),
      number("Records in all", (run) => run.total_records, { class: "hide-s" }), { title: "Snapshot", class: "mono hide-s", cell: (run) => run.id },
    ], snapshots, { key: (run) => run.id }) : loading ? empty("Reading the lake", "Its catalog is being opened.")
      : empty("No snapshots", "The pipeline has not committed anything yet.")),
  ];
}

/** How values become columns. */
function contract(terms) {
  if (!terms) return panel("Contract", empty("No typed columns", "Values are kept as they are.", " ", h("code", "nexo pipeline schema STREAM --infer")));
  const ids = terms.schema_ids.length ? `, schema ids ${terms.schema_ids.join(", ")}` : "";
  return panel("Contract", [h("div.body", facts([
    ["Values", `${terms.format} ${terms.message}${ids}`.trim()],
    ["A field that does not fit", terms.permissive ? "is null alone" : "makes a dead letter"],
    ["New fields", terms.additions ? "become columns" : "are left in the value"],
  ])), terms.columns.length ? table("Columns", [
    { title: "Column", class: "name mono", cell: (column) => column.column }, { title: "Type", class: "mono", cell: (column) => column.type },
    { title: "Field of the value", class: "mono hide-s", cell: (column) => column.field },
  ], terms.columns, { key: (column) => column.column }) : empty("No columns yet", "The next new field becomes one.")]);
}

function refused(name, letters) {
  return table("Dead letters", [
    timeColumn("When", (letter) => letter.time_ms),
    number("Partition", (letter) => letter.partition),
    { title: "Offset", class: "num", cell: (letter) => h("a", { href: href("stream", { name, partition: letter.partition, offset: letter.offset }) }, count(letter.offset)) },
    { title: "Why", class: "value reason", cell: (letter) => letter.reason },
  ], letters, { key: (letter) => `${letter.partition}/${letter.offset}` });
}
