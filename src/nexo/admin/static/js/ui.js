/** Parts that pages are made of. */

import { h } from "./dom.js";
import { ago, count, moment } from "./format.js";

// -- frames

export function head(title, { sub, crumbs = [], actions = [], extra = [] } = {}) {
  return h("div.head",
    h("div.grow",
      crumbs.length ? h("p.crumbs", crumbs.map((crumb) => [h("a", { href: crumb.href }, crumb.text), " / "])) : null,
      h("h1", title),
      sub ? h("p.sub", sub) : null),
    extra,
    h("div.actions", actions));
}

export function panel(title, body, ...right) {
  return h("section.panel", { "aria-label": title },
    h("header", h("h2", title), right.length ? h("div.right", right) : null),
    body);
}

export function facts(pairs, big = false) {
  return h(`dl.facts${big ? ".big" : ""}`, pairs.map(([name, value, tone]) =>
    h("div", h("dt", name), h("dd", { class: tone }, value))));
}

export function badge(text, tone = "") {
  return h("span.badge", { class: tone }, text);
}

export function empty(title, ...text) {
  return h("div.empty", h("strong", title), text);
}

export function failed(error, retry) {
  return h("div.failed", { role: "alert" }, h("span", error.message ?? String(error)),
    retry ? h("button.small", { type: "button", onclick: retry }, "Try again") : null);
}

/** What damaged files have cost, if anything. */
export function losses(rows) {
  if (!rows?.length) return null;
  return h("div.failed", { role: "alert" }, h("span", h("strong", "Damaged files have cost data: "), rows.join("; "),
    ". The server's log and ", h("code", "nexo doctor"), " say more."));
}

// -- controls

/** `lacks`: the permission that the user would need; the button says so instead of failing later. */
export function button(text, onclick, { kind = "", small = false, label, disabled, lacks } = {}) {
  const look = [kind, small ? "small" : ""].join(" ").trim();
  if (!lacks) return h("button", { type: "button", class: look, onclick, "aria-label": label, disabled }, text);
  const reason = `This takes the permission ${lacks}`;
  return h("button", { type: "button", class: look, onclick: () => toast(reason, true), "aria-label": label, "aria-disabled": "true", title: reason }, text);
}

export function segments(label, choices, chosen, choose) {
  return h("div.segments", { role: "group", "aria-label": label }, choices.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text)));
}

export function search(label, value, change) {
  let timer;
  return h("input.search", {
    type: "search", placeholder: label, "aria-label": label, value,
    oninput: (event) => {
      clearTimeout(timer);
      const text = event.target.value;
      timer = setTimeout(() => change(text), 200);
    },
  });
}

export function tabs(label, choices, chosen, href) {
  return h("nav.tabs", { "aria-label": label }, choices.map(([id, text, extra, tone]) =>
    h("a", { href: href(id), "aria-current": id === chosen ? "true" : undefined }, text,
      extra ? badge(count(extra), tone) : null)));
}

// -- tables

/** `columns`: `[{title, cell(row), class, sort}]`; `options.key(row)` keeps rows apart. */
export function table(label, columns, rows, { key, sort, onSort, chosen } = {}) {
  const headings = columns.map((column) => {
    const sorted = column.sort && column.sort === sort;
    const title = column.sort && onSort
      ? h("button.sort", { type: "button", onclick: () => onSort(column.sort) }, column.title, sorted ? (sort === "name" ? " ↑" : " ↓") : "")
      : column.title || h("span.sr", "Actions");
    return h("th", { scope: "col", class: column.class, "aria-sort": sorted ? (sort === "name" ? "ascending" : "descending") : undefined }, title);
  });
  return h("div.scroll", h("table", { "aria-label": label },
    h("thead", h("tr", headings)),
    h("tbody", rows.map((row) =>
      h("tr", { "data-key": key ? key(row) : undefined, class: chosen?.(row) ? "chosen" : undefined },
        columns.map((column) => cell(column, row)))))));
}

function cell(column, row) {
  const content = column.cell(row);
  const extra = column.alarm?.(row) ? "alarm" : content === "0" ? "zero" : "";
  return h("td", { class: [column.class, extra].filter(Boolean).join(" ") || undefined, title: column.tip?.(row) }, content);
}

export function number(title, read, options = {}) {
  return { title, class: `num ${options.class ?? ""}`.trim(), cell: (row) => (options.format ?? count)(read(row)), ...pick(options) };
}

/** A point in time: how long ago it was; the tip has it exactly. */
export function timeColumn(title, read, look) {
  return { title, class: look, cell: (row) => ago(read(row)), tip: (row) => moment(read(row)) };
}

/** A name, which may be cut; the tip has all of it. */
export function nameColumn(title, read, look = "name") {
  return { title, class: look, cell: read, tip: read };
}

const pick = ({ sort, alarm }) => ({ sort, alarm });

/** Pages by offset: `go(offset)`. */
export function pager(offset, limit, total, go) {
  if (total <= limit && offset === 0) return null;
  const last = Math.min(offset + limit, total);
  return h("div.pager", h("span", `${count(offset + 1)}–${count(last)} of ${count(total)}`),
    h("div.right",
      button("Previous", () => go(Math.max(0, offset - limit)), { small: true, disabled: offset === 0 }),
      button("Next", () => go(offset + limit), { small: true, disabled: last >= total })));
}

// -- values

const TOKENS = /("(?:\\.|[^"\\])*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)/g;

/** JSON with colours; every piece is text. */
export function json(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(TOKENS)) {
    parts.push(text.slice(at, found.index));
    const [all, string, colon, numeric] = found;
    if (string) parts.push(h(`span.${colon ? "j-key" : "j-str"}`, string), colon ?? "");
    else parts.push(h(`span.${numeric ? "j-num" : "j-lit"}`, all));
    at = found.index + all.length;
  }
  return [...parts, text.slice(at)];
}

export function value(shown) {
  if (shown.type === "deleted") return h("p.message", "Deleted (no value)");
  const text = shown.type === "bytes" ? hexdump(shown.text) : shown.text;
  return h("div.shown", copier(text),
    h("pre.code", { tabindex: "0", "aria-label": "Value" }, shown.type === "json" ? json(text) : text || "(empty)"),
    shown.truncated ? h("p.message", `Only the beginning of ${count(shown.size_bytes)} bytes is shown.`) : null);
}

/** Browsers let pages copy only over a secure connection. */
function copier(text) {
  if (!navigator.clipboard) return null;
  return button("Copy", async () => {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  }, { small: true, kind: "copy", label: "Copy the value" });
}

/** A value on one line. */
export function brief(shown) {
  if (shown.type === "deleted") return badge("deleted");
  if (shown.type === "bytes") return `${count(shown.size_bytes)} raw bytes`;
  const line = shown.text.slice(0, 400).replace(/\s+/g, " ");
  return line || "(empty)";
}

function hexdump(base64) {
  const raw = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const row = [...raw.slice(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const text = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex} ${text}`);
  }
  return lines.join("\n") || "(empty)";
}

/** Headers as a table of names and values; null if there are none. */
export function headers(given) {
  if (typeof given === "string") return h("div", h("h3", "Headers"), h("p.message", given));
  const rows = Object.entries(given ?? {});
  if (!rows.length) return null;
  return h("div", h("h3", "Headers"), table("Headers", [
    { title: "Name", class: "mono", cell: ([name]) => name },
    { title: "Value", class: "mono prose", cell: ([, set]) => (typeof set === "string" ? set : JSON.stringify(set)) },
  ], rows, { key: ([name]) => name }));
}

// -- toasts

export function toast(text, bad = false) {
  const shown = h("div.toast", { class: bad ? "bad" : "" }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), bad ? 7000 : 3500);
}
