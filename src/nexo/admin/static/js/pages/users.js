/** Users: what they may do, and their logins to this dashboard. */

import { get, post } from "../api.js";
import { confirm } from "../dialogs.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { href } from "../router.js";
import { badge, button, empty, facts, head, panel, table, timeColumn } from "../ui.js";

const ACTIONS = { "*": "anything", read: "read", write: "write", admin: "administer" };
const BROKERS = { "*": "every broker", store: "Store", pubsub: "Pub/Sub", queue: "Queue", stream: "Stream" };

export async function users({ given }) {
  const page = await get("/users");
  if (!page.required) return [head("Users"), panel("Users", empty("Authentication is off", "Everyone may do everything. ", h("code", "nexo serve --auth"), " asks for the users of ", h("code", "nexo user"), "."))];
  const chosen = page.users.find(({ account }) => account.name === (given.name ?? page.me)) ?? page.users[0];
  return [
    head("Users", { sub: `You are ${page.me}` }),
    page.users.length > 1 ? list(page.users, page.me, chosen) : null,
    chosen ? detail(chosen, page.me) : null,
  ];
}

function list(rows, me, chosen) {
  return panel(plural(rows.length, "user"), table("Users", [
    { title: "User", class: "name", cell: ({ account }) => [h("a", { href: href("users", { name: account.name }) }, account.name), account.name === me ? [" ", badge("you", "accent")] : null], tip: ({ account }) => account.name },
    { title: "Permissions", class: "value mono", cell: ({ account }) => account.grants.join(" ") || "none", tip: ({ account }) => account.grants.join("\n") },
    { title: "Tokens", class: "num hide-s", cell: ({ account }) => String(account.tokens.length) },
    { title: "Logins here", class: "num", cell: ({ logins }) => String(logins.length) },
  ], rows, { key: ({ account }) => account.name, chosen: (row) => row === chosen }));
}

function detail({ account, logins }, me) {
  const grants = account.grants.map(read);
  return h("div.stack",
    panel(`${account.name}: permissions`, [
      h("div.body", facts([["Password", account.password ? "yes" : "none"], ["Tokens", account.tokens.join(", ") || "none"]])),
      grants.length ? table("Permissions", [
        { title: "Broker", cell: (grant) => BROKERS[grant.broker] },
        { title: "May", cell: (grant) => ACTIONS[grant.action] },
        { title: "Names", class: "mono prose", cell: (grant) => (grant.pattern === "*" ? "all" : grant.pattern) },
        { title: "Grant", class: "mono hide-s", cell: (grant) => grant.text },
      ], grants, { key: (grant) => grant.text }) : empty("No permissions", "Give some with ", h("code", `nexo user grant ${account.name} …`), "."),
    ]),
    panel(`${account.name}: logins to this dashboard`, logins.length ? table("Logins", [
      { title: "From", class: "mono", cell: (login) => login.address ?? "–" },
      { title: "With", cell: (login) => badge(login.how) },
      timeColumn("Since", (login) => login.since_ms),
      timeColumn("Last used", (login) => login.used_ms),
      { title: "", class: "acts", cell: (login) => button("End", () => end(account.name, login), { small: true, kind: "danger", label: `End the login from ${login.address}` }) },
    ], logins, { key: (login) => login.id }) : empty("Not logged in"),
    h("a", { href: href("connections", { search: account.name }) }, account.name === me ? "My connections" : "Connections")));
}

function read(text) {
  const [broker, action, ...rest] = text.split(":");
  return { broker, action, pattern: rest.join(":"), text };
}

function end(user, login) {
  confirm("End this login?", `${user} from ${login.address ?? "an unknown address"} has to log in again.`, "End", async () => {
    await post("/users/logout", { user, login: login.id });
    return "Ended";
  });
}
