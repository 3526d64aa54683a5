/** The lake behind the streams. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { ago, bytes, count, moment } from "../format.js";
import { href } from "../router.js";
import { badge, empty, facts, head, number, panel, table } from "../ui.js";

export async function pipeline({ given }) {
  return given.name ? one(given.name) : all();
}

async function all() {
  const lake = await get("/pipeline/tables");
  const body = lake.tables.length ? table("Tables", [
    { title: "Stream", class: "name", cell: (row) => h("a", { href: href("pipeline", { name: row.stream }) }, row.stream) },
    { title: "Table", class: "mono hide-s", cell: (row) => row.table },
    number("Records", (row) => row.records), number("Files", (row) => row.files, { class: "hide-s" }),
    number("Size", (row) => row.bytes, { format: bytes }), number("Snapshots", (row) => row.snapshots, { class: "hide-s" }),
    { title: "Fresh", cell: (row) => ago(row.updated_ms), tip: (row) => moment(row.updated_ms) },
  ], lake.tables, { key: (row) => row.table })
    : empty("No tables yet", lake.reason || "Run the pipeline to move streams into the lake.", " ", h("code", "nexo pipeline run"));
  return [head("Pipeline", { sub: `Parquet and Iceberg in ${lake.place}` }), panel("Tables", body)];
}

async function one(name) {
  const { table: row, snapshots } = await get("/pipeline/table", { stream: name });
  const offsets = Object.entries(row.offsets);
  return [
    head(name, { crumbs: [{ text: "Pipeline", href: href("pipeline") }], actions: [h("a.button", { href: href("stream", { name, tab: "partitions" }) }, "The stream")] }),
    h("div.panel", h("div.body", facts([["Table", row.table], ["Records", count(row.records)], ["Files", count(row.files)], ["Size", bytes(row.bytes)], ["Fresh", ago(row.updated_ms)]], true))),
    panel("Taken so far", table("Offsets", [
      { title: "Partition", class: "num", cell: ([partition]) => partition }, number("Everything below", ([, end]) => end),
    ], offsets)),
    panel("Last runs", snapshots.length ? table("Snapshots", [
      { title: "Committed", cell: (one_) => moment(one_.committed_ms) }, { title: "What", cell: (one_) => badge(one_.operation) },
      number("Records added", (one_) => one_.added_records), number("Files added", (one_) => one_.added_files, { class: "hide-s" }),
      number("Records in all", (one_) => one_.total_records), { title: "Snapshot", class: "mono hide-s", cell: (one_) => one_.id },
    ], snapshots, { key: (one_) => one_.id }) : empty("No snapshots")),
  ];
}
