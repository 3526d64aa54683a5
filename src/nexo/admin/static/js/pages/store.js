/** Keys: find, look inside, set, expire, delete. */

import { get, post } from "../api.js";
import { confirm, form, show } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, duration, plural } from "../format.js";
import { permissions } from "../permissions.js";
import { href, refine } from "../router.js";
import { badge, brief, button, empty, facts, head, nameColumn, number, pager, panel, search, table, value } from "../ui.js";

const LIMIT = 50;
const ITEMS = 100;

export async function store({ given, now, memory, redraw }) {
  if (given.name) return one(given.name, memory, redraw);
  memory.trail ??= [""];
  memory.search ??= given.search ?? "";
  const text = memory.search;
  const match = /[*?[]/.test(text) ? { glob: text } : { prefix: text };
  const page = await get("/store/keys", { ...match, cursor: memory.trail.at(-1), limit: LIMIT });
  const numbers = now?.brokers.find((broker) => broker.name === "store")?.numbers;
  const lacks = await permissions("store");
  const find = (wanted) => { memory.search = wanted; memory.trail = [""]; refine({ search: wanted }); };
  return [
    head("Store", {
      sub: numbers ? `${plural(numbers.keys ?? 0, "key")}, ${bytes(numbers.used_bytes)}` : "\u00a0",
      actions: [button("Set a key", () => setKey(), { kind: "primary", lacks: lacks("write") })],
    }),
    panel("Keys", [list(page, text, lacks("write")), turn(memory, page, redraw)],
      search("Prefix, or a pattern with *", text, find)),
  ];
}

function list({ keys: rows, cursor }, text, lack) {
  if (!rows.length) {
    if (cursor) return empty("Nothing found so far", "There are many keys: press Next to continue the search.");
    return text ? empty("No key matches", "Try a shorter prefix, or a pattern such as ", h("code", "*user*"), ".")
      : empty("The store is empty", "Set a key here, or with ", h("code", "client.store.set(…)"), ".");
  }
  return table("Keys", [
    { title: "Key", class: "name mono", cell: (row) => h("a", { href: href("store", { name: row.key }) }, row.key), tip: (row) => row.key },
    { title: "Kind", class: "hide-s", cell: (row) => badge(row.kind, row.kind === "value" ? "" : "accent") },
    number("Items", (row) => row.items, { class: "hide-s" }),
    number("Size", (row) => row.size_bytes, { format: bytes, class: "hide-s" }),
    number("Expires in", (row) => row.ttl_ms, { format: (ms) => (ms === null ? "never" : duration(ms)) }),
    { title: "", class: "acts", cell: (row) => remove(row.key, true, lack) },
  ], rows, { key: (row) => row.key });
}

function turn(memory, page, redraw) {
  if (!page.cursor && memory.trail.length === 1) return null;
  const go = (trail) => { memory.trail = trail; redraw(); };
  return h("div.pager", h("span", `Page ${memory.trail.length}`), h("div.right",
    button("Previous", () => go(memory.trail.slice(0, -1)), { small: true, disabled: memory.trail.length === 1 }),
    button("Next", () => go([...memory.trail, page.cursor]), { small: true, disabled: !page.cursor })));
}

async function one(name, memory, redraw) {
  memory.offset ??= 0;
  const key = await get("/store/key", { key: name, offset: memory.offset, limit: ITEMS });
  const lack = (await permissions("store", name))("write");
  const edit = key.value && key.value.type !== "bytes" && !key.value.truncated;
  return [
    head(key.key, {
      crumbs: [{ text: "Store", href: href("store") }],
      actions: [
        edit ? button("Edit", () => setKey(key), { lacks: lack }) : null,
        button("Expire", () => expire(key), { lacks: lack }),
        remove(key.key, false, lack),
      ],
    }),
    h("div.panel", h("div.body", facts([
      ["Kind", key.kind],
      ["Items", count(key.items)],
      ["Size", bytes(key.size_bytes)],
      ["Expires in", key.ttl_ms === null ? "never" : duration(key.ttl_ms)],
    ], true))),
    panel(key.value ? `Value (${key.value.type})` : `Items (${key.kind})`, content(key, memory, redraw)),
  ];
}

function content(key, memory, redraw) {
  if (key.value) return h("div.body", value(key.value));
  if (!key.content.length && !memory.offset) return empty("Too many items to show here", `This ${key.kind} has ${count(key.items)}.`);
  const rows = key.content.map((item, i) => ({ ...item, label: item.name ?? (key.kind === "list" ? String(memory.offset + i) : "") }));
  const look = (row) => button("Show", () => show(row.label || key.key, value(row.value), { wide: true }), { small: true, label: `Show ${row.label || row.value.text.slice(0, 80)}` });
  const columns = [
    ...(key.kind === "map" ? [nameColumn("Field", (row) => row.label, "name mono")] : []),
    ...(key.kind === "list" ? [number("Index", (row) => row.label, { format: String })] : []),
    { title: "Value", class: "value", cell: (row) => brief(row.value) }, number("Size", (row) => row.value.size_bytes, { format: bytes, class: "hide-s" }),
    { title: "", class: "acts", cell: look },
  ];
  return [table("Items", columns, rows), pager(memory.offset, ITEMS, key.items, (to) => { memory.offset = to; redraw(); })];
}

function setKey(key) {
  form(key ? "Edit the value" : "Set a key", [
    { name: "key", label: "Key", value: key?.key, required: true, wide: true },
    { name: "value", type: "value", value: key?.value },
    { name: "ttl_s", label: "Expires after (seconds)", type: "number", min: 0.001, step: "any", value: key?.ttl_ms ? key.ttl_ms / 1000 : "", hint: "Empty: never" },
    { name: "if_absent", label: "Only if it does not exist", type: "checkbox" },
  ], "Set", async (given) => {
    const { count: done } = await post("/store/set", given);
    if (!done) throw new Error("the key exists already");
    if (!key) location.hash = href("store", { name: given.key });
    return `Set ${given.key}`;
  });
}

function expire(key) {
  form("Change the life time", [
    { name: "ttl_s", label: "Expires after (seconds)", type: "number", min: 0.001, step: "any", wide: true, value: key.ttl_ms ? key.ttl_ms / 1000 : "", hint: "Empty: never" },
  ], "Change", async ({ ttl_s: ttl = null }) => {
    await post("/store/expire", { key: key.key, ttl_s: ttl });
    return ttl === null ? "It never expires now" : `It expires in ${duration(ttl * 1000)}`;
  });
}

function remove(key, small, lacks) {
  const act = async () => {
    await post("/store/delete", { key });
    if (!small) location.hash = href("store");
    return `Deleted ${key}`;
  };
  return button("Delete", () => confirm("Delete this key?", key, "Delete", act), { kind: "danger", small, label: `Delete ${key}`, lacks });
}
