/** Pages by address: `#/queue?name=emails&tab=dead`. Every view has an address of its own. */

let visits = 0;

/** A page was opened; see `staying`. */
export function visited() {
  visits += 1;
}

/** Whether the user is still on the page where this was called. */
export function staying() {
  const then = visits;
  return () => then === visits;
}

export function here() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  const page = path.replace(/^\//, "") || "overview";
  return { page, given: Object.fromEntries(new URLSearchParams(query)) };
}

export function href(page, given = {}) {
  const kept = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `#/${page}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

/** Change the address without a new entry in the browser's history. */
export function refine(given) {
  const { page, given: before } = here();
  history.replaceState(null, "", href(page, { ...before, ...given }));
  document.dispatchEvent(new CustomEvent("nexo-refined"));
}
