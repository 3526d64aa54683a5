/** Questions in SQL over streams and their history: an editor, the answer, and what may be named. */

import { get, post } from "../api.js";
import { bars } from "../charts.js";
import { h } from "../dom.js";
import { count, duration, plural } from "../format.js";
import { button, empty, failed, head, panel, search, segments, table } from "../ui.js";

const HISTORY = "nexo-sql";
const KEPT = 50;
const LIMITS = [["100", "100 rows"], ["1000", "1,000 rows"], ["10000", "10,000 rows"]];
const TIMES = [["10", "10 s"], ["30", "30 s"], ["120", "2 min"], ["300", "5 min"]];
const FIRST = "select topic, count(*) as records, max(timestamp) as newest\nfrom stream_messages\ngroup by topic\norder by records desc";

export async function sql({ given, memory, redraw }) {
  memory.text ??= given.query ?? past()[0] ?? FIRST;
  memory.limit ??= "1000";
  memory.seconds ??= "30";
  memory.columns ??= {};
  memory.views ??= await views(memory);
  memory.end = () => memory.running?.abort();
  return [
    head("SQL", { sub: "Ask the hot log and the lake as one; times are in UTC" }),
    h("div.ask",
      h("div.stack", panel("Question", editor(memory, redraw)), answer(memory, redraw)),
      h("div.stack", panel("Views", named(memory, redraw)), panel("Asked before", before(memory, redraw)))),
  ];
}

// -- the question

function editor(memory, redraw) {
  const run = (plan) => ask(memory, redraw, plan);
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(false); }
  };
  return h("form.body.stack", { onsubmit: (event) => { event.preventDefault(); run(false); } },
    h("div", { "data-key": `question-${memory.version ?? 0}`, "data-keep": "question" }, h("textarea.question", {
      "aria-label": "Question in SQL", spellcheck: "false", rows: "8", value: memory.text,
      oninput: (event) => { memory.text = event.target.value; }, onkeydown: keys,
    })),
    h("div.row",
      h("button.primary", { type: "submit", disabled: Boolean(memory.running) }, "Run"), h("kbd.hide-s", "Ctrl Enter"),
      button("Plan", () => run(true), { disabled: Boolean(memory.running) }),
      memory.running ? button("Cancel", () => memory.running?.abort(), { kind: "danger" }) : null,
      choice("At most", LIMITS, memory.limit, (value) => { memory.limit = value; }),
      choice("for", TIMES, memory.seconds, (value) => { memory.seconds = value; }),
      memory.running ? h("span.message", { role: "status" }, "Running…") : null));
}

function choice(label, choices, chosen, choose) {
  return h("label.row", label, h("select.short", { "aria-label": label === "for" ? "Time limit" : "Row limit", onchange: (event) => choose(event.target.value) },
    choices.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

async function ask(memory, redraw, plan) {
  memory.running?.abort();
  const running = new AbortController();
  Object.assign(memory, { running, error: null });
  redraw();
  const question = { query: memory.text, limit: Number(memory.limit), timeout_s: Number(memory.seconds), plan };
  try {
    memory.result = await post("/sql/query", question, running.signal);
    remember(memory.text);
  } catch (error) {
    Object.assign(memory, { result: null, error: running.signal.aborted ? new Error("The query was cancelled.") : error });
  }
  if (memory.running !== running) return;
  memory.running = null;
  redraw();
}

// -- the answer

function answer(memory, redraw) {
  if (memory.error) return panel("Answer", h("div.body", failed(memory.error)));
  const found = memory.result;
  if (!found && memory.running) return panel("Answer", empty("Running…", "Cancel ends it."));
  if (!found) return panel("Answer", empty("Nothing asked yet", "Write a SELECT, or choose a view at the side."));
  if (found.plan) return panel("Plan", h("div.body", h("pre.code.plan", { tabindex: "0", "aria-label": "Plan" }, found.plan)));
  const chartable = numeric(found).length > 0 && found.rows.length > 0;
  const shown = chartable ? memory.shown ?? "table" : "table";
  const show = (kind) => { memory.shown = kind; redraw(); };
  const size = `${plural(found.rows.length, "row")}${found.more ? ", and there are more" : ""} in ${duration(found.took_ms)}`;
  return panel("Answer", [
    found.rows.length ? (shown === "chart" ? drawn(found) : rows(found)) : empty("No rows", "The question was answered; nothing matches."),
    h("div.pager", h("span", { role: "status" }, size), h("div.right",
      button("CSV", () => save("answer.csv", "text/csv", csv(found)), { small: true, label: "Download as CSV" }),
      button("JSON", () => save("answer.json", "application/json", json(found)), { small: true, label: "Download as JSON" }))),
  ], chartable ? segments("Show as", [["table", "Table"], ["chart", "Chart"]], shown, show) : null);
}

function rows(found) {
  const numbers = new Set(numeric(found));
  return table("Answer", found.columns.map((column, at) => ({
    title: column.name, class: numbers.has(at) ? "num" : "mono", cell: (row) => text(row[at]), tip: () => column.type,
  })), found.rows.slice(0, 1000));
}

/** The first column that is no number names the bars, else the first of several; the next number is their length. */
function drawn(found) {
  const numbers = numeric(found);
  const texts = found.columns.findIndex((_, at) => !numbers.includes(at));
  const name = texts < 0 && numbers.length > 1 ? numbers[0] : texts;
  const length = numbers.find((at) => at !== name);
  const labelled = found.rows.slice(0, 50).map((row, at) => [name < 0 ? String(at + 1) : text(row[name]), Number(row[length]) || 0]);
  return h("div.body", h("p.message", found.columns[length].name, found.rows.length > 50 ? ", the first 50 rows" : ""), bars(found.columns[length].name, labelled, count));
}

const NUMBER = /^(u?int|float|double|half|decimal)/;
const numeric = (found) => found.columns.flatMap(({ type }, at) => (NUMBER.test(type) ? [at] : []));

function text(item) {
  if (item === null || item === undefined) return "null";
  return typeof item === "object" ? JSON.stringify(item) : String(item);
}

function csv(found) {
  const field = (item) => {
    if (item === null || item === undefined) return "";
    const plain = text(item);
    return /[",\r\n]/.test(plain) || plain === "" ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [found.columns.map(({ name }) => name), ...found.rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function json(found) {
  return JSON.stringify(found.rows.map((row) => Object.fromEntries(found.columns.map(({ name }, at) => [name, row[at]]))), null, 1);
}

function save(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// -- what may be named

async function views(memory) {
  return get("/sql/views", { search: memory.search, limit: 100 });
}

function named(memory, redraw) {
  const { views: found, total } = memory.views;
  const look = async (words) => { memory.search = words; memory.views = await views(memory); redraw(); };
  const open = async (view) => {
    memory.columns[view.name] = memory.columns[view.name] ? null : await columns(view);
    redraw();
  };
  return [
    h("div.body", search("Search streams", memory.search ?? "", look)),
    h("ul.views", { "aria-label": "Views" }, found.map((view) => h("li", { "data-key": view.name },
      h("div.row", h("button.ghost.small.grow", { type: "button", title: view.stream ? `${view.stream}, also ${view.name}` : "all streams", "aria-expanded": String(Boolean(memory.columns[view.name])), onclick: () => open(view) }, view.stream || view.name),
        button("Use", () => use(memory, redraw, `select *\nfrom ${written(view)}\nlimit 100`), { small: true, label: `Ask about ${view.stream || view.name}` })),
      memory.columns[view.name] ? h("dl.columns", memory.columns[view.name].map((column) => [h("dt", column.name), h("dd", column.type)])) : null))),
    total > found.length ? h("p.message.body", `${count(total - found.length)} more: search for them.`) : null,
  ];
}

/** A view's name as a query writes it. */
function written({ name, stream }) {
  return stream && stream !== name ? `"${stream}"` : name;
}

async function columns(view) {
  try {
    return (await post("/sql/query", { query: `select * from ${view.name} limit 0` })).columns;
  } catch (error) {
    return [{ name: error.message, type: "" }];
  }
}

// -- what was asked before

function past() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY) ?? "[]").filter((each) => typeof each === "string");
  } catch {
    return [];
  }
}

function remember(asked) {
  localStorage.setItem(HISTORY, JSON.stringify([asked, ...past().filter((each) => each !== asked)].slice(0, KEPT)));
}

function before(memory, redraw) {
  const asked = past();
  if (!asked.length) return empty("Nothing yet", "Questions stay in this browser.");
  return [
    h("ul.views", { "aria-label": "Asked before" }, asked.slice(0, 12).map((each) => h("li", { "data-key": each },
      h("button.ghost.small.past", { type: "button", title: each, onclick: () => use(memory, redraw, each) }, each.replace(/\s+/g, " "))))),
    h("div.body", button("Forget them", () => { localStorage.removeItem(HISTORY); redraw(); }, { small: true })),
  ];
}

function use(memory, redraw, question) {
  Object.assign(memory, { text: question, version: (memory.version ?? 0) + 1 });
  redraw();
}
