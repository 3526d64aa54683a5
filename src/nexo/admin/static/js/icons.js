/** Line icons, drawn on 24 by 24. */

import { h } from "./dom.js";

const PATHS = {
  overview: "M4 13h6V4H4zM14 20h6V4h-6zM4 20h6v-3H4z",
  store: "M5 7c0-1.7 3.1-3 7-3s7 1.3 7 3-3.1 3-7 3-7-1.3-7-3zM5 7v10c0 1.7 3.1 3 7 3s7-1.3 7-3V7M5 12c0 1.7 3.1 3 7 3s7-1.3 7-3",
  pubsub: "M12 13a1 1 0 1 0 0-2 1 1 0 0 0 0 2zM8.5 15.5a5 5 0 0 1 0-7M15.5 8.5a5 5 0 0 1 0 7M5.6 18.4a9 9 0 0 1 0-12.8M18.4 5.6a9 9 0 0 1 0 12.8",
  queue: "M4 6h16M4 12h16M4 18h10",
  stream: "M3 8c3-4 6-4 9 0s6 4 9 0M3 16c3-4 6-4 9 0s6 4 9 0",
  pipeline: "M4 5h6v5H4zM14 14h6v5h-6zM7 10v4a2.5 2.5 0 0 0 2.5 2.5H14",
  sql: "M5 5h14v14H5zM5 10h14M10 10v9",
  replicas: "M4 4h10v6H4zM10 14h10v6H10zM7 10v5a2 2 0 0 0 2 2h1",
  connections: "M9 12h6M8 8H7a4 4 0 0 0 0 8h1M16 8h1a4 4 0 0 1 0 8h-1",
  users: "M9 11a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM3 20c0-3.3 2.7-6 6-6s6 2.7 6 6M15 4.5a3.5 3.5 0 0 1 0 6.4M17.5 14.6c2.1.8 3.5 2.9 3.5 5.4",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
};

export function icon(name) {
  const shape = h("path", {
    d: PATHS[name], fill: "none", stroke: "currentColor", "stroke-width": "1.8",
    "stroke-linecap": "round", "stroke-linejoin": "round",
  });
  return h("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, shape);
}
