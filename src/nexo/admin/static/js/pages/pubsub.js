/** Topics: the tree, who listens, live messages, publish. */

import { follow, get, post } from "../api.js";
import { confirm, form, show } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, clock, count, moment, plural, rate, until } from "../format.js";
import { permissions } from "../permissions.js";
import { href, refine, staying } from "../router.js";
import { badge, brief, button, empty, facts, head, headers, nameColumn, number, pager, panel, search, table, tabs, toast, value } from "../ui.js";

const KEPT = 300;
const LIMIT = 200;
const LINES = 40;

export async function pubsub({ given, now, memory, redraw }) {
  const tab = given.tab ?? "topics";
  const numbers = now?.brokers.find((broker) => broker.name === "pubsub")?.numbers;
  const draw = { topics, subscriptions, live }[tab] ?? topics;
  const lacks = await permissions("pubsub");
  return [
    head("Pub/Sub", {
      sub: numbers ? `${rate(numbers.published)} messages in and ${rate(numbers.delivered)} out per second` : "\u00a0",
      actions: [button("Publish", () => publish(given.pattern), { kind: "primary", lacks: lacks("write") })],
    }),
    tabs("Pub/Sub", [["topics", "Topics"], ["subscriptions", "Subscriptions"], ["live", "Live messages"]], tab,
      (id) => href("pubsub", { tab: id })),
    await draw({ given, memory, redraw, lack: lacks("write") }),
  ];
}

// -- topics

async function topics({ given, memory, redraw, lack }) {
  memory.offset ??= 0;
  memory.open ??= new Map();
  const page = await get("/pubsub/topics", { search: given.search, limit: LIMIT, offset: memory.offset });
  const find = (text) => { memory.offset = 0; refine({ search: text }); };
  const turn = (path, to) => { memory.open.set(path, to); redraw(); };
  const tree = shortened(grown(page));
  if (!given.search) unfold(tree, memory.open);
  const isOpen = (path) => memory.open.get(path) ?? Boolean(given.search);
  const body = page.topics.length
    ? table("Topics", columns(isOpen, turn, lack), lines(tree, isOpen), { key: (line) => line.path })
    : empty(given.search ? "No topic matches" : "No topics yet",
      given.search ? "" : ["Topics appear here once someone publishes or subscribes: ", h("code", 'client.pubsub.publish("home/hall", 21)'), "."]);
  const some = page.complete ? null : h("p.note", "Not all topics fit into this list: it and the sums cover those used last.");
  return panel("Topics and patterns", [body, some, pager(memory.offset, LIMIT, page.total, (to) => { memory.offset = to; redraw(); })],
    search("Search topics", given.search ?? "", find));
}

/** Topics by level; every level knows the sums of all below, on whichever page they are. */
function grown({ topics: rows, levels }) {
  const sums = new Map(levels.map(({ path, per_s: perS, ...rest }) => [path, { ...rest, perS }]));
  const root = { children: new Map() };
  for (const row of rows) {
    let place = root;
    let path = "";
    row.topic.split("/").forEach((level, depth) => {
      path = depth ? `${path}/${level}` : level;
      if (!place.children.has(level)) place.children.set(level, { level, path, depth, children: new Map(), ...sums.get(path) });
      place = place.children.get(level);
    });
    place.row = row;
  }
  return root;
}

/** Levels that only lead to one other are one line with it. */
function shortened(place) {
  for (const [level, child] of place.children) {
    let end = child;
    while (!end.row && end.children.size === 1) {
      const [next] = end.children.values();
      end = { ...next, level: `${end.level}/${next.level}` };
    }
    place.children.set(level, shortened({ ...end, depth: (place.depth ?? -1) + 1 }));
  }
  return place;
}

/** Open level by level, small branches first, as long as the lines fit; what a user opened or closed stays. */
function unfold(tree, open) {
  let shown = [...tree.children.values()];
  let room = LINES - shown.length;
  while (shown.length) {
    for (const line of shown.filter(({ children }) => children.size).sort((a, b) => a.children.size - b.children.size)) {
      if (!open.has(line.path)) open.set(line.path, line.children.size <= room);
      if (open.get(line.path)) room -= line.children.size;
    }
    shown = shown.filter(({ path }) => open.get(path)).flatMap(({ children }) => [...children.values()]);
  }
}

function lines(place, isOpen) {
  return [...place.children.values()].flatMap((child) => [child, ...(isOpen(child.path) ? lines(child, isOpen) : [])]);
}

function columns(isOpen, turn, lack) {
  return [
    { title: "Topic", class: "name mono level", tip: (line) => line.path, cell: (line) => h("span.indent", { style: { paddingLeft: `${line.depth * 18}px` } },
      line.children.size ? toggle(line, isOpen(line.path), turn) : h("span.twig"), leaf(line, lack), line.children.size && !isOpen(line.path) ? badge(count(line.topics)) : null) },
    number("In/s", (line) => line.perS, { format: rate }),
    number("Messages", (line) => line.messages, { class: "hide-s" }),
    number("Listening", (line) => line.subscribers, { class: "hide-s" }),
    number("Dropped", (line) => line.dropped, { class: "hide-s", alarm: (line) => line.dropped > 0 }),
    { title: "Retained", class: "hide-s", cell: ({ row }) => (row && row.retained_bytes !== null ? badge(bytes(row.retained_bytes)) : "") },
    { title: "", class: "acts", cell: (line) => acts(line, lack) },
  ];
}

/** A level's name; one that retains a message shows it. */
function leaf({ level, row }, lack) {
  const name = level || "(empty)";
  if (!row || row.retained_bytes === null) return h("span.leaf", name);
  return h("button.leaf", { type: "button", onclick: () => look(row, lack), "aria-label": `Show ${row.topic}` }, name);
}

function toggle(line, open, turn) {
  return h("button.twig", { type: "button", "aria-expanded": String(open), "aria-label": `${open ? "Close" : "Open"} ${line.path}`, onclick: () => turn(line.path, !open) }, open ? "▾" : "▸");
}

function acts({ row, path, children }, lack) {
  const kept = row && row.retained_bytes !== null;
  const pattern = children.size ? `${path}/#` : path;
  return [
    kept ? button("Clear", () => clear(row.topic), { small: true, kind: "danger hide-s", label: `Clear ${row.topic}`, lacks: lack }) : null,
    button("Watch", () => { location.hash = href("pubsub", { tab: "live", pattern }); }, { small: true, label: `Watch ${pattern}` }),
  ];
}

async function look(row, lack) {
  const still = staying();
  try {
    const message = await get("/pubsub/retained", { topic: row.topic });
    if (!still()) return;
    show(row.topic, [
      facts([["Published", moment(message.timestamp_ms)], ["Size", bytes(message.value.size_bytes)],
        ["Expires", row.expires_ms ? until(row.expires_ms) : "never"]]),
      value(message.value), headers(message.headers),
    ], { wide: true, act: button("Clear", () => clear(row.topic), { kind: "danger", lacks: lack }) });
  } catch (error) {
    toast(error.message, true);
  }
}

function clear(topic) {
  confirm("Forget the retained message?", topic, "Clear", async () => {
    await post("/pubsub/clear", { topic });
    return `Cleared ${topic}`;
  });
}

// -- subscriptions

async function subscriptions({ given, memory, redraw }) {
  memory.offset ??= 0;
  const page = await get("/pubsub/subscriptions", { search: given.search, limit: 100, offset: memory.offset });
  const body = page.subscriptions.length ? table("Subscriptions", [
    nameColumn("Pattern", (row) => row.pattern, "name mono"),
    nameColumn("Client", (row) => row.client),
    { title: "When slow", class: "hide-s", cell: (row) => badge(row.policy.replace("_", " ")) },
    number("Waiting", (row) => row.waiting),
    number("Bytes", (row) => row.waiting_bytes, { format: bytes, class: "hide-s" }),
    number("Dropped", (row) => row.dropped, { alarm: (row) => row.dropped > 0 }),
  ], page.subscriptions) : empty(given.search ? "No subscription matches" : "Nobody is subscribed");
  return panel("Subscriptions", [body, pager(memory.offset, 100, page.total, (to) => { memory.offset = to; redraw(); })],
    search("Pattern or client", given.search ?? "", (text) => { memory.offset = 0; refine({ search: text }); }));
}

// -- live messages

async function live({ given, memory, redraw }) {
  const pattern = given.pattern ?? "#";
  if (memory.watching !== pattern) watch(pattern, memory, redraw);
  const control = h("form.row", { onsubmit: (event) => {
    event.preventDefault();
    refine({ pattern: event.target.elements.pattern.value });
  } },
  h("input.short.mono", { name: "pattern", value: pattern, "aria-label": "Pattern to watch" }),
  h("button.small", { type: "submit" }, "Watch"));
  const pause = button(memory.paused ? "Resume" : "Pause", () => { memory.paused = !memory.paused; redraw(); }, { small: true });
  return panel("Live messages", memory.problem ? empty("Cannot watch", memory.problem) : messages(memory, pattern), control, pause);
}

function watch(pattern, memory, redraw) {
  memory.source?.close();
  Object.assign(memory, { watching: pattern, rows: [], skipped: 0, problem: null, up: false, seen: 0 });
  memory.source = follow("/pubsub/tail", { pattern, retained: true }, (event) => {
    if (memory.paused) return;
    const fresh = event.messages.map((message) => ({ ...message, id: ++memory.seen })).reverse();
    memory.rows = [...fresh, ...memory.rows].slice(0, KEPT);
    memory.skipped = event.skipped;
    redraw();
  }, (up, problem) => { memory.up = up; memory.problem = problem?.message ?? null; redraw(); });
  memory.end = () => memory.source.close();
}

function messages(memory, pattern) {
  if (!memory.rows.length) return empty(memory.up ? `Watching ${pattern}` : "Connecting", "Messages appear here as they are published.");
  return [
    h("div.tail", { tabindex: "0", role: "log", "aria-label": "Messages" }, h("ul", memory.rows.map((row) =>
      h("li", { "data-key": row.id }, h("time", clock(row.timestamp_ms)),
        h("span.topic", h("button.topic", { type: "button", onclick: () => reveal(row) }, row.topic), row.retained ? [" ", badge("retained")] : null),
        h("span.text", { title: row.value.text.slice(0, 500) }, brief(row.value)))))),
    h("div.pager", `${count(memory.seen)} messages`, memory.skipped ? `, ${count(memory.skipped)} too fast to show` : ""),
  ];
}

async function reveal(row) {
  const still = staying();
  const { subscriptions: found } = await get("/pubsub/trace", { topic: row.topic }).catch(() => ({ subscriptions: [] }));
  if (!still()) return;
  show(row.topic, [
    facts([["Published", moment(row.timestamp_ms)], ["Size", bytes(row.value.size_bytes)], ["Type", row.value.type]]),
    value(row.value), headers(row.headers), listeners(found),
  ], { wide: true });
}

/** Who gets messages of a topic now; who got earlier ones is not kept. */
function listeners(rows) {
  if (!rows.length) return null;
  return h("div", h("h3", "Who gets messages of this topic now"), table("Subscribers of this topic", [
    nameColumn("Client", (row) => row.client),
    nameColumn("Pattern", (row) => row.pattern, "name mono"),
    number("Waiting", (row) => row.waiting), number("Dropped", (row) => row.dropped, { alarm: (row) => row.dropped > 0 }),
  ], rows.slice(0, 50)));
}

// -- acting

function publish(pattern) {
  const topic = pattern && !/[+#]/.test(pattern) ? pattern : "";
  form("Publish a message", [
    { name: "topic", label: "Topic", required: true, wide: true, value: topic, placeholder: "sensors/kitchen/temperature" },
    { name: "value", type: "value" },
    { name: "retain", label: "Retain as the topic's last value", type: "checkbox" },
    { name: "ttl_s", label: "Retain for (seconds)", type: "number", min: 0.001, step: "any", hint: "Empty: forever" },
    { name: "headers", label: "Headers, as JSON", type: "json", wide: true, placeholder: '{"source": "dashboard"}' },
  ], "Publish", async (given) => {
    const { count: receivers } = await post("/pubsub/publish", given);
    return `Published to ${plural(receivers, "receiver")}`;
  });
}
