/** Queues: the list, and one queue with its jobs, dead letters and cron schedules. */

import { get, post } from "../api.js";
import { sparkline, summary } from "../charts.js";
import { confirm, form } from "../dialogs.js";
import { h } from "../dom.js";
import { count, moment, rate, until } from "../format.js";
import { options } from "../options.js";
import { permissions } from "../permissions.js";
import { href } from "../router.js";
import { badge, button, empty, head, losses, nameColumn, number, panel, table, tabs } from "../ui.js";
import { find, jobs } from "./jobs.js";
import { list, remove } from "./list.js";

export async function queue(context) {
  return context.given.name ? one(context) : all(context);
}

// -- the list

function all(context) {
  return list("queue", context, [
    { title: "Queue", class: "name", sort: "name", cell: ({ info }) => [h("a", { href: href("queue", { name: info.name }) }, info.name), info.paused ? [" ", badge("paused", "warn")] : null], tip: ({ info }) => info.name },
    { title: "Pushed, last minute", class: "hide-s", cell: (row) => sparkline(row.pushed, "queue") },
    number("In/s", (row) => row.pushed_per_s, { format: rate, sort: "activity" }),
    number("Out/s", (row) => row.finished_per_s, { format: rate, class: "hide-s" }),
    number("Waiting", ({ info }) => info.waiting, { sort: "waiting" }),
    number("Working", ({ info }) => info.working, { sort: "working", class: "hide-s" }),
    number("Scheduled", ({ info }) => info.scheduled, { sort: "scheduled", class: "hide-s" }),
    number("Dead", ({ info }) => info.dead, { sort: "dead", alarm: ({ info }) => info.dead > 0 }),
  ], (row) => row.info.name, "emails");
}

// -- one queue

async function one({ given, memory, redraw }) {
  const name = given.name;
  const tab = given.tab ?? "waiting";
  const row = await get("/queue/info", { queue: name });
  const lacks = await permissions("queue", name);
  const info = row.info;
  const choices = [
    ["waiting", "Waiting", info.waiting], ["working", "In work", info.working], ["scheduled", "Scheduled", info.scheduled],
    ["dead", "Dead letters", info.dead, "bad"], ["cron", "Cron", info.schedules], ["options", "Options"],
  ];
  return [
    head(name, {
      crumbs: [{ text: "Queues", href: href("queue") }],
      extra: info.paused ? badge("paused", "warn") : null,
      actions: [
        button("Push a job", () => push(name), { kind: "primary", lacks: lacks("write") }),
        button("Find a job", () => find(name)),
        info.paused ? button("Resume", () => act("/queue/resume", name, "Resumed"), { lacks: lacks("admin") })
          : button("Pause", () => act("/queue/pause", name, "Paused"), { lacks: lacks("admin") }),
        button("Purge", () => purge(info), { kind: "danger", lacks: lacks("admin") }),
        button("Delete", () => remove("queue", name, "All its jobs and dead letters are deleted."), { kind: "danger", lacks: lacks("admin") }),
      ],
    }),
    losses(info.losses),
    summary([
      ["Waiting", count(info.waiting)], ["Working", count(info.working)], ["Scheduled", count(info.scheduled)],
      ["Dead", count(info.dead), info.dead ? "alarm" : ""], ["In/s", rate(row.pushed_per_s)], ["Out/s", rate(row.finished_per_s)],
      ["Pushed", count(info.pushed_total)], ["Finished", count(info.finished_total)], ["Failed", count(info.failed_total + info.died_total)],
    ], "Jobs per second", [{ name: "pushed", tone: "queue", points: row.pushed }, { name: "finished or failed", tone: "second", points: row.finished }]),
    tabs("Queue", choices, tab, (id) => href("queue", { name, tab: id })),
    await ({
      cron: () => crons(name, lacks),
      options: () => options("queue", name, info.options, lacks("admin")),
    }[tab]?.() ?? jobs(name, tab, memory, redraw, lacks)),
  ];
}

async function act(path, name, said) {
  form(`${said.replace(/d$/, "")} ${name}?`, [], said.replace(/d$/, ""), async () => {
    await post(path, { queue: name });
    return `${said} ${name}`;
  }, { message: path.endsWith("pause") ? "Consumers get no more jobs until the queue is resumed. Pushes still work." : "Consumers get jobs again." });
}

function purge(info) {
  confirm("Purge this queue?", `${count(info.waiting + info.scheduled)} waiting and scheduled jobs are removed for good. Dead letters stay.`, "Purge", async () => {
    const { count: gone } = await post("/queue/purge", { queue: info.name });
    return `Removed ${count(gone)} jobs`;
  });
}

function push(name) {
  form("Push a job", [
    { name: "value", type: "value" },
    { name: "priority", label: "Priority (0–255)", type: "number", min: 0, max: 255, value: 0 },
    { name: "delay_s", label: "Delay (seconds)", type: "number", min: 0, step: "any" },
    { name: "key", label: "Key", hint: "For fairness and limits" },
    { name: "dedup_key", label: "Dedup key", hint: "At most one such job waits or runs" },
    { name: "headers", label: "Headers, as JSON", type: "json", wide: true, placeholder: '{"source": "dashboard"}' },
  ], "Push", async (given) => {
    const { id } = await post("/queue/push", { queue: name, ...given });
    return `Pushed ${id}`;
  });
}

// -- cron schedules

async function crons(name, lacks) {
  const rows = await get("/queue/cron/list", { queue: name });
  const body = rows.length ? table("Cron schedules", [
    nameColumn("Name", (row) => row.name), { title: "Cron", class: "mono", cell: (row) => row.cron },
    { title: "Time zone", class: "hide-s", cell: (row) => row.zone || "UTC" },
    { title: "Next", cell: (row) => until(row.next_ms), tip: (row) => moment(row.next_ms) }, number("Priority", (row) => row.priority, { class: "hide-s" }),
    { title: "", class: "acts", cell: (row) => button("Delete", () => confirm("Delete this schedule?", row.name, "Delete", async () => {
      await post("/queue/cron/delete", { queue: name, name: row.name });
      return `Deleted ${row.name}`;
    }), { small: true, kind: "danger", label: `Delete schedule ${row.name}`, lacks: lacks("admin") }) },
  ], rows, { key: (row) => row.name }) : empty("No schedules", "A schedule pushes a job by itself, like cron.");
  return panel("Cron schedules", body, button("Set a schedule", () => setCron(name), { small: true, lacks: lacks("admin") }));
}

function setCron(name) {
  form("Set a schedule", [
    { name: "name", label: "Name", required: true, placeholder: "nightly" },
    { name: "cron", label: "Cron, five fields, UTC", required: true, placeholder: "0 3 * * *" },
    { name: "value", type: "value" },
    { name: "priority", label: "Priority (0–255)", type: "number", min: 0, max: 255, value: 0 },
  ], "Set", async (given) => {
    const { next_ms: next } = await post("/queue/cron/set", { queue: name, ...given });
    return `First run ${until(next)}`;
  });
}
