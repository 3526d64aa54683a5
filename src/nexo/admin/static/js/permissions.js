/** What the user may do; the brokers decide again about every request. */

import { get } from "./api.js";

const KEPT_MS = 5000;
const EVERYTHING = { read: true, write: true, admin: true };
const known = new Map();
let asked = false;

/** Ask the server from now on if it requires logins. */
export function askForPermissions(required) {
  asked = required;
  known.clear();
}

/**
 * A function that says which permission an action lacks, or nothing: `lacks("write")`.
 * Without a name, whether the user may do it to anything of the broker.
 */
export async function permissions(broker, name = "") {
  const may = asked ? await current(broker, name) : EVERYTHING;
  return (action) => (may[action] ? undefined : `${broker}:${action}:${name || "…"}`);
}

async function current(broker, name) {
  const key = `${broker}/${name}`;
  const before = known.get(key);
  if (before && Date.now() - before.at < KEPT_MS) return before.may;
  const may = await get("/may", { broker, name });
  known.set(key, { may, at: Date.now() });
  return may;
}
