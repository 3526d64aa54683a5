/** The whole server: brokers, history, alerts, the busiest queues and streams. */

import { get } from "../api.js";
import { chart, legend, sparkline } from "../charts.js";
import { h } from "../dom.js";
import { bytes, count, millis, rate } from "../format.js";
import { href } from "../router.js";
import { badge, empty, facts, head, nameColumn, number, panel, segments, table } from "../ui.js";

const CARDS = {
  store: { title: "Store", rate: "commands", unit: "commands/s", extra: (n) => [["keys", count(n.keys)], ["used", bytes(n.used_bytes)]] },
  pubsub: { title: "Pub/Sub", rate: "published", unit: "messages/s", extra: (n) => [["subscribed", count(n.subscriptions)], ["retained", count(n.retained)]] },
  queue: { title: "Queue", rate: "pushed_total", unit: "jobs/s", extra: (n) => [["waiting", count(n.waiting)], ["dead", count(n.dead)]] },
  stream: { title: "Stream", rate: "published", unit: "records/s", extra: (n) => [["streams", count(n.streams)], ["lag", count(n.lag)]] },
};

const CHARTS = [
  { broker: "store", title: "Store, commands per second", lines: [["commands", "commands", "store"], ["misses", "misses", "second"]] },
  { broker: "pubsub", title: "Pub/Sub, messages per second", lines: [["delivered", "delivered", "pubsub"], ["published", "published", "second"], ["dropped", "dropped", "third"]] },
  { broker: "queue", title: "Queue, jobs per second", lines: [["pushed", "pushed_total", "queue"], ["finished", "finished_total", "second"], ["failed", "failed_total,died_total", "third"]] },
  { broker: "stream", title: "Stream, records per second", lines: [["published", "published", "stream"], ["finished by groups", "finished", "second"]] },
];
const SLOW_ROUND_S = 5;
const UNFOLDED = 3;
const SORTS = { "dead-letters": { queue: "dead" }, stuck: { queue: "waiting", stream: "lag" }, lag: { stream: "lag" }, parked: { stream: "lag" } };
const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];

export async function overview({ now, memory, redraw }) {
  memory.seconds ??= 300;
  const current = now ?? await get("/overview");
  if (!current.brokers.length) return [head("Overview", { sub: `Nexo ${current.version}` }), ...permitted(current)];
  const seen = CHARTS.filter(({ broker }) => current.brokers.some(({ name }) => name === broker));
  const histories = await Promise.all(seen.map(({ broker }) =>
    get("/history", { broker, seconds: memory.seconds, points: 150 })));
  const choose = (seconds) => { memory.seconds = seconds; redraw(); };
  const down = current.brokers.filter((broker) => !broker.up).length;
  return [
    head("Overview", {
      sub: `Nexo ${current.version} · ${down ? `${down} of ${current.brokers.length} brokers down` : "all brokers up"} · ${disk(current)}`,
      actions: [segments("History", SPANS, memory.seconds, choose)],
    }),
    h("div.cards", current.brokers.map((broker, i) => card(broker, histories[i]))),
    alerts(current),
    h("div.grid", seen.map((spec, i) => drawn(spec, histories[i])), latency(seen, histories), requests(current.brokers)),
    h("div.grid", queues(current.queues), streams(current.streams)),
    groups(current.groups),
  ];
}

/** For users who may read no broker as a whole: what they may read. */
function permitted({ queues: some, streams: others }) {
  return [
    some.length || others.length ? h("div.grid", some.length ? queues(some) : null, others.length ? streams(others) : null) : null,
    panel("Overview", empty("You may not see the rest of the overview",
      "It shows the brokers that a user may read as a whole, which takes a permission such as ", h("code", "queue:read:*"),
      ". The other pages show what this user may read.")),
  ];
}

function disk(current) {
  const free = current.brokers.map((broker) => broker.disk.free_bytes).filter((value) => value !== undefined);
  const sync = Math.max(0, ...current.brokers.map((broker) => broker.numbers.sync_ms ?? 0));
  return `${bytes(free.length ? Math.min(...free) : null)} of disk free · sync ${millis(sync)}`;
}

function card(broker, history) {
  const spec = CARDS[broker.name];
  const numbers = broker.numbers;
  return h("a.panel.card", { href: href(broker.name), "data-key": broker.name },
    h("div.top", h("span.dot", { class: broker.name }), spec.title,
      h("span.state", broker.up ? badge("up", "good") : badge("down", "bad"))),
    h("div.figure",
      h("strong", rate(numbers[spec.rate]), " ", h("small", spec.unit)),
      sparkline(history.series[spec.rate].slice(-90), broker.name)),
    facts([
      ...spec.extra(numbers),
      ["clients", count(numbers.connections)],
      ["memory", bytes(numbers.rss_bytes)],
      ["cpu", numbers.cpu_percent === null ? "–" : `${numbers.cpu_percent} %`],
      ["p99", millis(numbers.request_p99_ms)],
    ]));
}

/** What is wrong; with many queues and streams, as of the last check of each. */
function alerts({ alerts: rows, alerts_total: total, round_s: every }) {
  const late = every === null ? "Still checking every queue and stream for the first time."
    : every > SLOW_ROUND_S ? `Each queue and stream is checked every ${count(Math.ceil(every))} s.` : null;
  if (!rows.length) return late ? h("p.note", late) : null;
  const found = h("ul.alerts", rows.map((alert) =>
    h("li", { "data-key": `${alert.kind}/${alert.broker}/${alert.subject}/${alert.group}` }, badge(alert.level, alert.level === "critical" ? "bad" : "warn"),
      h("span.grow", subject(alert), ": ", alert.message))));
  const body = rows.length > UNFOLDED ? h("details.fold", h("summary", kinds(rows)), found) : found;
  return panel(`Alerts (${count(total)})`, [body, late ? h("div.pager", late) : null]);
}

/** How many alerts there are of each kind, the critical ones first: `broker down, 9 dead letters`. */
function kinds(rows) {
  const found = new Map();
  for (const { kind, level, count: of } of [...rows].sort((one, two) => one.level.localeCompare(two.level))) {
    const before = found.get(kind) ?? { of: 0, level };
    found.set(kind, { ...before, of: before.of + of });
  }
  return [...found].map(([kind, { of, level }]) => [badge(`${count(of)} ${kind.replaceAll("-", " ")}`, level === "critical" ? "bad" : "warn"), " "]);
}

/** What an alert is about, as a link to where it can be fixed. */
function subject(alert) {
  if (alert.kind.startsWith("pipeline")) return h("a", { href: href("pipeline") }, "pipeline");
  if (alert.count > 1 && SORTS[alert.kind]) return h("a", { href: href(alert.broker, { sort: SORTS[alert.kind][alert.broker] }) }, alert.broker);
  if (!alert.subject) return h("strong", alert.broker);
  const tab = alert.kind === "dead-letters" ? "dead" : alert.group ? "groups" : "";
  return h("a", { href: href(alert.broker, { name: alert.subject, tab, group: alert.group }) }, alert.subject);
}

function drawn({ title, lines }, history) {
  const shown = lines
    .map(([name, series, tone]) => ({ name, tone, points: summed(series.split(",").map((one) => history.series[one] ?? [])) }))
    .filter((line) => line.tone !== "third" || line.points.some(Boolean));
  const covered = Math.max(...shown.map((line) => line.points.length)) * history.step_s;
  return panel(title, h("div.body", legend(shown), chart(title, shown, covered, history.end_ms)));
}

/** Several series as one; null where none is known. */
function summed([first, ...others]) {
  const add = (one, two) => (one === null || two === null ? one ?? two : one + two);
  return others.reduce((sum, next) => sum.map((value, i) => add(value, next[i] ?? null)), first);
}

/** How long requests take, all brokers in one chart. */
function latency(seen, histories) {
  const lines = seen.map(({ broker }, i) => ({ name: CARDS[broker].title, tone: broker, points: histories[i].series.request_p99_ms ?? [] }));
  const covered = Math.max(...lines.map((line) => line.points.length)) * histories[0].step_s;
  const title = "Request time, 99th percentile";
  return panel(title, h("div.body", legend(lines, millis), chart(title, lines, covered, histories[0].end_ms, millis)));
}

function requests(brokers) {
  const rows = brokers.flatMap((broker) => broker.requests.map((row) => ({ ...row, broker: broker.name })));
  const shown = rows.sort((a, b) => b.count - a.count).slice(0, 5);
  return panel("Requests, last minute", shown.length ? table("Requests", [
    { title: "Request", class: "name", cell: (row) => [asked(row.op), row.waits ? [" ", badge("waits")] : null],
      tip: (row) => (row.waits ? `${row.op}: its time includes waiting for something to come` : row.op) },
    { title: "Broker", class: "hide-s", cell: (row) => h("span.row", h("span.dot", { class: row.broker }), CARDS[row.broker].title) },
    number("Count", (row) => row.count),
    number("p50", (row) => row.p50_ms, { format: millis }), number("p99", (row) => row.p99_ms, { format: millis }),
  ], shown, { key: (row) => `${row.broker}/${row.op}` }) : empty("No requests in the last minute"));
}

const WORDS = { settle: "ack or nack", take: "take records", publish_run: "publish", publish_each: "publish", pub: "publish", sub: "subscribe", echo: "ping" };

/** What an opcode does, as users call it. */
function asked(op) {
  const name = op.replace(/^(q|s|ps|map|key)_/, "");
  return WORDS[name] ?? name.replaceAll("_", " ");
}

function queues(rows) {
  const columns = [
    { title: "Queue", class: "name", cell: (row) => [h("a", { href: href("queue", { name: row.name }) }, row.name), row.paused ? [" ", badge("paused", "warn")] : null], tip: (row) => row.name },
    number("In/s", (row) => row.pushed_per_s, { format: rate }),
    number("Out/s", (row) => row.finished_per_s, { format: rate }),
    number("Waiting", (row) => row.waiting),
    number("Working", (row) => row.working, { class: "hide-s" }),
    number("Dead", (row) => row.dead, { alarm: (row) => row.dead > 0 }),
  ];
  const body = rows.length ? table("Busiest queues", columns, rows, { key: (row) => row.name })
    : empty("No queues yet", "Create one on the Queue page or with the SDK.");
  return panel("Busiest queues", body, h("a", { href: href("queue") }, "All queues"));
}

function streams(rows) {
  const columns = [
    { title: "Stream", class: "name", cell: (row) => h("a", { href: href("stream", { name: row.name }) }, row.name), tip: (row) => row.name },
    number("In/s", (row) => row.published_per_s, { format: rate }),
    number("Offsets", (row) => row.offsets),
    number("Size", (row) => row.bytes, { format: bytes, class: "hide-s" }),
    number("Groups", (row) => row.groups, { class: "hide-s" }),
    number("Lag", (row) => row.lag),
  ];
  const body = rows.length ? table("Busiest streams", columns, rows, { key: (row) => row.name })
    : empty("No streams yet", "Create one on the Stream page or with the SDK.");
  return panel("Busiest streams", body, h("a", { href: href("stream") }, "All streams"));
}

function groups(rows) {
  if (!rows.length) return null;
  return panel("Groups furthest behind", table("Groups furthest behind", [
    { title: "Group", class: "name", cell: (row) => h("a", { href: href("stream", { name: row.stream, tab: "groups", group: row.name }) }, row.name), tip: (row) => row.name },
    nameColumn("Stream", (row) => row.stream),
    { title: "Kind", class: "hide-s", cell: (row) => badge(row.kind) },
    { title: "Lag, last minute", class: "hide-s", cell: (row) => sparkline(row.lags, "stream") },
    number("Lag", (row) => row.lag),
    number("Out/s", (row) => row.finished_per_s, { format: rate }),
    number("In work", (row) => row.in_flight, { class: "hide-s" }),
    number("Parked", (row) => row.parked, { class: "hide-s", alarm: (row) => row.parked > 0 }),
    number("Consumers", (row) => row.consumers, { class: "hide-s", alarm: (row) => row.consumers === 0 }),
  ], rows, { key: (row) => `${row.kind}/${row.stream}/${row.name}` }), h("a", { href: href("stream", { sort: "lag" }) }, "Streams by lag"));
}
