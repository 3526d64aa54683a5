/** Requests to the server: reads by GET, actions by POST with a header that other sites cannot send. */

const BASE = "api/v1";

export class Problem extends Error {
  constructor(code, message, status, field) {
    super(message);
    this.code = code;
    this.status = status;
    this.field = field;
  }
}

export async function get(path, parameters = {}) {
  return read(await reach(`${BASE}${path}${query(parameters)}`, {}));
}

export async function post(path, body = {}, signal = undefined) {
  const headers = { "content-type": "application/json", "x-nexo": "1" };
  return read(await reach(`${BASE}${path}`, { method: "POST", headers, body: JSON.stringify(body), signal }));
}

const RETRY_MS = 3000;
const TEMPORARY = new Set(["CONNECTION", "TIMEOUT", "UNAVAILABLE", "OVERLOADED", "SHUTTING_DOWN"]);

/** Events until `close()`: `onData(object)`, `onState(up, problem)`; temporary failures are retried. */
export function follow(path, parameters, onData, onState = () => {}) {
  let source;
  let timer;
  const again = () => { timer = setTimeout(() => stillIn().then((in_) => in_ && open()), RETRY_MS); };
  const open = () => {
    source = new EventSource(`${BASE}${path}${query(parameters)}`);
    source.onmessage = (event) => onData(JSON.parse(event.data));
    source.onopen = () => onState(true);
    source.onerror = () => {
      onState(false);
      if (source.readyState === EventSource.CLOSED) again();
    };
    source.addEventListener("problem", (event) => {
      const { code, message } = JSON.parse(event.data);
      source.close();
      onState(false, new Problem(code, message));
      if (code === "UNAUTHENTICATED") askLogin();
      else if (TEMPORARY.has(code)) again();
    });
  };
  open();
  return { close: () => { clearTimeout(timer); source.close(); } };
}

/** Whether the login, if one is needed, is still valid; asks for one if not. */
async function stillIn() {
  const me = await get("/session").catch(() => null);
  if (!me?.required || me.user) return true;
  askLogin();
  return false;
}

function askLogin() {
  document.dispatchEvent(new CustomEvent("nexo-login"));
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch {
    throw new Problem("CONNECTION", "the server does not answer", 0);
  }
}

async function read(response) {
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 401 && !response.url.endsWith("/login")) askLogin();
  throw new Problem(body.code ?? "ERROR", body.message ?? response.statusText, response.status, body.field);
}
