/** The jobs of a queue, by state: look inside, cancel, replay, delete. */

import { get, post } from "../api.js";
import { confirm, form, show } from "../dialogs.js";
import { h } from "../dom.js";
import { count, duration, moment, until } from "../format.js";
import { href } from "../router.js";
import { badge, brief, button, empty, facts, headers, number, pager, panel, table, timeColumn, value } from "../ui.js";

const LIMIT = 50;
const TITLES = { waiting: "Waiting jobs", working: "Jobs in work", scheduled: "Scheduled jobs", dead: "Dead letters" };
const HINTS = {
  waiting: "Push one here, or with client.queue(…).push(…).", working: "Workers take jobs with pop, subscribe or nexo worker.",
  scheduled: "Delayed jobs and retries appear here until they are due.", dead: "Jobs that fail too often end here, to be replayed or deleted.",
};
const NOTHING = {
  waiting: "No job waits", working: "No job is with a worker",
  scheduled: "No job is delayed or waits for a retry", dead: "No job has failed for good",
};

export async function jobs(name, state, memory, redraw, lacks) {
  if (memory.state !== state) Object.assign(memory, { state, offset: 0, picked: new Set() });
  const page = await get("/queue/jobs", { queue: name, state, limit: LIMIT, offset: memory.offset });
  const turn = pager(memory.offset, LIMIT, page.total, (to) => { memory.offset = to; redraw(); });
  const title = TITLES[state];
  if (!page.jobs.length) return panel(title, empty(NOTHING[state], HINTS[state]));
  return panel(title, [table(title, columns(name, state, lacks), page.jobs, { key: (job) => job.id }), turn],
    state === "dead" ? [
      button("Replay all", () => replay(name, null, page.total), { small: true, lacks: lacks("admin") }),
      button("Delete all", () => remove(name, null, page.total), { small: true, kind: "danger", lacks: lacks("admin") }),
    ] : null);
}

function columns(name, state, lacks) {
  const look = { title: "Job", cell: (job) => button(job.id.slice(-8), () => inspect(name, job), { small: true, kind: "link mono", label: `Show job ${job.id}` }) };
  const shown = { title: "Value", class: ["dead", "working"].includes(state) ? "value hide-s" : "value", cell: (job) => [task(job), brief(job.value)] };
  const rest = {
    waiting: [
      number("Priority", (job) => job.priority, { class: "hide-s" }), { title: "Key", class: "hide-s", cell: (job) => job.key ?? "–" },
      number("Attempts", (job) => job.attempts, { class: "hide-s" }), timeColumn("Pushed", (job) => job.pushed_ms, "hide-s"),
      { title: "", class: "acts", cell: (job) => cancel(name, job, lacks("admin") && lacks("write")) },
    ],
    working: [
      { title: "Held by", class: "name", cell: (job) => h("a", { href: href("connections", { broker: "queue", view: "single", search: job.holder }) }, job.holder), tip: (job) => `connection ${job.holder_id}` },
      { title: "Lease left", cell: left, tip: (job) => `ends ${moment(job.expires_ms)}` },
      number("Attempt", (job) => job.attempts + 1, { class: "hide-s" }), number("Priority", (job) => job.priority, { class: "hide-s" }),
      timeColumn("Pushed", (job) => job.pushed_ms, "hide-s"),
    ],
    scheduled: [
      { title: "Due", cell: (job) => until(job.due_ms), tip: (job) => moment(job.due_ms) }, number("Attempts", (job) => job.attempts),
      number("Priority", (job) => job.priority, { class: "hide-s" }), { title: "", class: "acts", cell: (job) => cancel(name, job, lacks("admin") && lacks("write")) },
    ],
    dead: [
      { title: "Reason", class: "value reason", cell: (job) => job.reason || job.cause, tip: (job) => job.reason }, number("Attempts", (job) => job.attempts, { class: "hide-s" }),
      timeColumn("Died", (job) => job.died_ms, "hide-s"),
      { title: "", class: "acts", cell: (job) => [
        button("Replay", () => replay(name, [job.id]), { small: true, label: `Replay ${job.id}`, lacks: lacks("admin") }),
        button("Delete", () => remove(name, [job.id]), { small: true, kind: "danger", label: `Delete ${job.id}`, lacks: lacks("admin") }),
      ] },
    ],
  }[state];
  return [look, shown, ...rest];
}

/** How much of its lease a job has left: a bar, and the time. */
function left(job) {
  const ms = Math.max(0, job.expires_ms - Date.now());
  const share = Math.min(1, ms / Math.max(1, job.lease_ms));
  return h("span.lease", h("span.bar", { "aria-hidden": "true" }, h("i", { class: share < 0.2 ? "late" : "hot", style: { width: `${share * 100}%` } })),
    ms ? duration(ms) : badge("overdue", "warn"));
}

function cancel(name, job, lack) {
  return button("Cancel", () => confirm("Remove this job?", job.id, "Remove", async () => {
    await post("/queue/cancel", { queue: name, ids: [job.id] });
    return "Removed";
  }), { small: true, kind: "danger", label: `Cancel ${job.id}`, lacks: lack });
}

function replay(name, ids, total) {
  form(ids ? "Replay this dead letter?" : `Replay all ${count(total)} dead letters?`, [], "Replay", async () => {
    const { count: done } = await post("/queue/dlq/replay", { queue: name, ids });
    return `${count(done)} jobs wait again`;
  }, { message: "It runs again from the first attempt." });
}

function remove(name, ids, total) {
  confirm(ids ? "Delete this dead letter?" : `Delete all ${count(total)} dead letters?`, "It is deleted for good.", "Delete", async () => {
    const { count: done } = ids ? await post("/queue/dlq/delete", { queue: name, ids }) : await post("/queue/dlq/purge", { queue: name });
    return `Deleted ${count(done)}`;
  });
}

const STATE_WORDS = {
  waiting: "waits", scheduled: "waits until it is due", working: "is with a worker", dead: "is a dead letter",
  replaced: "was replaced by another", done: "is done",
};

/** Find a job by its id, even if no list shows it any more. */
export function find(name) {
  form("Find a job", [{ name: "id", label: "Id", required: true, wide: true, placeholder: "000001a1df2fdf070000000000000000" }], "Find", async ({ id }) => {
    const job = await get("/queue/job", { queue: name, id: id.trim() });
    const text = (given) => value({ type: "json", text: JSON.stringify(given, null, 2) });
    show(`Job ${id.trim()}`, [
      facts([["It", STATE_WORDS[job.state] ?? job.state], ["Attempts", count(job.attempts)], ...(job.replaced_by ? [["Replaced by", job.replaced_by]] : [])]),
      job.reason ? h("div", h("h3", "Reason"), value({ type: "text", text: job.reason })) : null,
      job.progress === null ? null : h("div", h("h3", "Progress"), text(job.progress)),
      job.result === null ? null : h("div", h("h3", "Result"), text(job.result)),
    ], { wide: true });
    return "Found";
  });
}

/** The task of a job that Celery or a similar framework pushed, as its headers name it. */
function task({ headers: given }) {
  return typeof given?.task === "string" ? [badge(given.task, "accent"), " "] : null;
}

/** What such a task is called with. */
function called(given) {
  if (typeof given?.task !== "string") return [];
  const shown = [["Arguments", given.argsrepr], ["Keywords", given.kwargsrepr]].filter(([, text]) => text);
  return [["Task", given.task], ...shown];
}

function inspect(name, job) {
  const facts_ = [
    ["Pushed", moment(job.pushed_ms)], ...(job.holder ? [["Delivered to", job.holder], ["Lease ends", moment(job.expires_ms)]] : []), ["Priority", job.priority], ["Attempts", job.attempts],
    ["Key", job.key ?? "–"], ...called(job.headers), ...(job.cause ? [["Cause", job.cause], ["Died", moment(job.died_ms)]] : []),
  ];
  show(`Job ${job.id}`, [
    facts(facts_), value(job.value), headers(job.headers),
    job.history.length ? h("div", h("h3", "Failures"), job.history.map(([at, reason]) =>
      h("div.failure", h("p.message", moment(at)), value({ type: "text", text: reason || "no reason given" })))) : null,
  ], { wide: true });
}
