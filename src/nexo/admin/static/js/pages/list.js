/** What the pages of queues and of streams share: the list of all, and deleting one. */

import { get, post } from "../api.js";
import { confirm } from "../dialogs.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { create } from "../options.js";
import { permissions } from "../permissions.js";
import { href, refine } from "../router.js";
import { button, empty, head, pager, panel, search, table } from "../ui.js";

const LIMIT = 50;

/** All of one `kind`, "queue" or "stream"; `example` is a name for a new one. */
export async function list(kind, { given, memory, redraw }, columns, nameOf, example) {
  memory.offset ??= 0;
  const sort = given.sort ?? "activity";
  const page = await get(`/${kind}/list`, { search: given.search, sort, limit: LIMIT, offset: memory.offset });
  const lacks = await permissions(kind);
  const restart = (wanted) => { memory.offset = 0; refine(wanted); };
  const rows = page[`${kind}s`];
  const body = rows.length
    ? table(`${title(kind)}s`, columns, rows, { key: nameOf, sort, onSort: (name) => restart({ sort: name }) })
    : empty(given.search ? `No ${kind} matches` : `No ${kind}s yet`, given.search ? "" : ["Create one here, or with ", h("code", `client.${kind}("${example}").create()`), "."]);
  return [
    head(`${title(kind)}s`, { sub: plural(page.total, kind), actions: [button(`Create a ${kind}`, () => create(kind, example), { kind: "primary", lacks: lacks("admin") })] }),
    panel(`All ${kind}s`, [body, pager(memory.offset, LIMIT, page.total, (to) => { memory.offset = to; redraw(); })],
      search(`Search ${kind}s`, given.search ?? "", (text) => restart({ search: text }))),
  ];
}

const title = (kind) => kind[0].toUpperCase() + kind.slice(1);

export function remove(kind, name, message) {
  confirm(`Delete this ${kind}?`, `${message} This cannot be undone.`, "Delete", async () => {
    await post(`/${kind}/delete`, { [kind]: name });
    location.hash = href(kind);
    return `Deleted ${name}`;
  }, name);
}
