/** The frame: navigation, live updates, theme, keys. Pages draw themselves into it. */

import { follow, get, post } from "./api.js";
import { closeAll, show } from "./dialogs.js";
import { h, morph } from "./dom.js";
import { count } from "./format.js";
import { icon } from "./icons.js";
import { connections } from "./pages/connections.js";
import { login } from "./pages/login.js";
import { overview } from "./pages/overview.js";
import { pipeline } from "./pages/pipeline.js";
import { pubsub } from "./pages/pubsub.js";
import { queue } from "./pages/queue.js";
import { replicas } from "./pages/replicas.js";
import { sql } from "./pages/sql.js";
import { store } from "./pages/store.js";
import { stream } from "./pages/stream.js";
import { users } from "./pages/users.js";
import { askForPermissions } from "./permissions.js";
import { here, href, visited } from "./router.js";
import { empty, failed, head, panel } from "./ui.js";

const PAGES = {
  overview: { title: "Overview", key: "o", draw: overview },
  store: { title: "Store", key: "s", draw: store, one: "key" },
  pubsub: { title: "Pub/Sub", key: "p", draw: pubsub },
  queue: { title: "Queue", key: "q", draw: queue, one: "queue" },
  stream: { title: "Stream", key: "t", draw: stream, one: "stream" },
  pipeline: { title: "Pipeline", key: "l", draw: pipeline },
  sql: { title: "SQL", key: "a", draw: sql },
  replicas: { title: "Replicas", key: "r", draw: replicas },
  connections: { title: "Connections", short: "Clients", key: "c", draw: connections },
  users: { title: "Users", key: "u", draw: users },
};
const NOWHERE = { title: "No such page", draw: nowhere };
const EVERY_MS = 2000;
const LOADING_MS = 400;
const LOST_MS = 2000;

const main = document.getElementById("main");
const state = { now: null, page: null, drawn: false, turn: 0, busy: false, end: null };

// -- pages

/** What a page may use: `given` from its address, `now` from the live feed, `memory` of its own. */
function context() {
  return { given: here().given, now: state.now, memory: state.memory, redraw };
}

async function visit() {
  if (document.body.classList.contains("plain")) return;
  const { page } = here();
  const known = Object.hasOwn(PAGES, page) ? PAGES[page] : NOWHERE;
  visited();
  closeAll();
  state.end?.();
  state.memory = {};
  state.end = () => state.memory.end?.();
  state.page = known;
  state.drawn = false;
  document.title = `${known.title} · Nexo`;
  main.replaceChildren();
  drawNav();
  const slow = setTimeout(() => {
    if (!main.children.length) main.append(h("p.empty", { role: "status" }, "Loading…"));
  }, LOADING_MS);
  await redraw();
  clearTimeout(slow);
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

/** Ask the page for its newest state; of overlapping answers only the last counts. */
async function redraw() {
  const turn = ++state.turn;
  const page = state.page;
  state.busy = true;
  let wanted;
  try {
    wanted = await page.draw(context());
  } catch (error) {
    if (error.status === 401) return;
    if (error.status === 0 && state.drawn) return; // what is there stays, and is marked as old
    wanted = refused(error);
  } finally {
    state.busy = false;
  }
  if (turn !== state.turn || !wanted) return;
  const frame = h("main", { id: "main", tabindex: "-1" }, wanted);
  morph(main, frame);
  state.drawn = true;
}

/** A page that could not be drawn: its title, the error and what to do. */
function refused(error) {
  const { page: id, given } = here();
  const { title, one } = state.page;
  const known = Object.hasOwn(PAGES, id) ? id : "overview";
  return [
    given.name ? head(given.name, { crumbs: [{ text: title, href: href(known) }] }) : head(title),
    failed(error, error.status === 404 || error.status === 403 ? null : redraw),
    error.status === 403 && one && !given.name ? panel(`Open a ${one} by its name`, byName(known, one)) : null,
  ];
}

/** An address without a page, such as one with a typing error. */
async function nowhere() {
  return [head("No such page"), panel("No such page", empty(`There is no page ${here().page}`,
    "Go to the ", h("a", { href: href("overview") }, "Overview"), ", or choose a page from the list."))];
}

/** For users who may read single things but not the list of all. */
function byName(page, one) {
  const field = h("input", { name: "name", required: true, "aria-label": `Name of the ${one}`, autocomplete: "off", placeholder: `Name of the ${one}` });
  const go = (event) => { event.preventDefault(); location.hash = href(page, { name: event.target.elements.name.value }); };
  return h("form.body.row.by-name", { onsubmit: go }, field, h("button.primary", { type: "submit" }, "Open"));
}

function quiet() {
  return document.hidden || document.querySelector("dialog[open]") || state.busy;
}

setInterval(() => { if (!quiet() && state.page && state.page !== PAGES.overview) redraw(); }, EVERY_MS);
document.addEventListener("nexo-changed", () => redraw());
document.addEventListener("nexo-refined", () => redraw());
window.addEventListener("hashchange", visit);

// -- the frame

function drawNav() {
  const alerts = state.now?.alerts ?? [];
  const total = state.now?.alerts_total ?? 0;
  const worst = alerts.some((alert) => alert.level === "critical") ? "critical" : "warning";
  const shown = Object.entries(PAGES).filter(([id]) => (id !== "users" || state.logins) && (id !== "replicas" || state.now?.replica_role));
  const links = shown.map(([id, page]) =>
    h("a", { href: href(id), "aria-label": page.short ? page.title : undefined, "aria-current": page === state.page ? "page" : undefined },
      icon(id), h("span.long", page.title), page.short ? h("span.short", { "aria-hidden": "true" }, page.short) : null,
      id === "overview" && total ? h("span.count", { class: worst, "aria-label": `${total} alerts` }, count(total)) : null));
  const nav = document.getElementById("nav");
  morph(nav, h("nav", { id: "nav", "aria-label": "Pages" }, links));
}

function live() {
  const link = document.getElementById("link");
  const lost = document.getElementById("lost");
  let timer;
  follow("/live", {}, (now) => {
    state.now = now;
    drawNav();
    if (state.page === PAGES.overview && !quiet()) redraw();
  }, (up) => {
    link.textContent = up ? "live" : "no connection";
    link.className = `link-state ${up ? "up" : "down"}`;
    clearTimeout(timer);
    if (up) lost.hidden = true;
    else timer = setTimeout(() => sayLost(lost), LOST_MS);
  });
}

/** Old numbers look like current ones, so say how old they are. */
function sayLost(lost) {
  const since = state.now ? ` Numbers are from ${new Date(state.now.now_ms).toLocaleTimeString([], { hour12: false })}.` : "";
  lost.textContent = `No connection to the server, trying again.${since}`;
  lost.hidden = document.body.classList.contains("plain");
}

// -- theme

const themeButton = document.getElementById("theme");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
}

function drawTheme() {
  themeButton.replaceChildren(icon(theme() === "dark" ? "sun" : "moon"));
  themeButton.setAttribute("aria-label", theme() === "dark" ? "Use the light theme" : "Use the dark theme");
}

function chooseTheme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("nexo-theme", name);
  drawTheme();
}

const remembered = localStorage.getItem("nexo-theme");
if (remembered === "dark" || remembered === "light") document.documentElement.dataset.theme = remembered;
themeButton.onclick = () => chooseTheme(theme() === "dark" ? "light" : "dark");
dark.addEventListener("change", drawTheme);
drawTheme();

// -- keys

function keyHelp() {
  const rows = [
    ...Object.values(PAGES).map((page) => [`g ${page.key}`, `Go to ${page.title}`]),
    ["/", "Search"], ["d", "Dark or light"], ["?", "This list"], ["Esc", "Close a dialog"],
  ];
  show("Keyboard shortcuts", h("dl.keys-list", rows.map(([keys, text]) =>
    [h("dt", keys.split(" ").map((key) => [h("kbd", key), " "])), h("dd", text)])));
}

let leader = 0;
document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, textarea, select");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const page = Object.entries(PAGES).find(([, known]) => known.key === event.key);
  if (event.key === "g") leader = Date.now();
  else if (page && Date.now() - leader < 1200) {
    leader = 0;
    location.hash = href(page[0]);
  } else if (event.key === "/") {
    const field = main.querySelector("input[type=search]");
    if (field) { field.focus(); event.preventDefault(); }
  } else if (event.key === "d") themeButton.click();
  else if (event.key === "?") keyHelp();
});
document.getElementById("keys").onclick = keyHelp;
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); main.focus(); };

// -- start

async function start() {
  const me = await get("/session").catch(() => ({ required: false, user: null }));
  if (me.required && !me.user) return askLogin();
  document.body.classList.remove("plain");
  askForPermissions(me.required);
  state.logins = me.required;
  document.getElementById("logout").hidden = !me.user;
  document.getElementById("who").textContent = me.user ?? "";
  live();
  return visit();
}

function askLogin() {
  document.body.classList.add("plain");
  state.page = null;
  closeAll();
  document.getElementById("lost").hidden = true;
  main.replaceChildren(login(() => location.reload()));
  main.querySelector("input")?.focus();
}

document.addEventListener("nexo-login", askLogin, { once: true });
document.getElementById("logout").onclick = async () => {
  await post("/logout");
  location.reload();
};
start();

