/** Pages by address: `#/queue?name=emails&tab=dead`. Every view has an address of its own. */

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
