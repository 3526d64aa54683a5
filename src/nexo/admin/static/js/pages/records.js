/** One record of a stream, whole. */

import { get } from "../api.js";
import { show } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, count, moment } from "../format.js";
import { staying } from "../router.js";
import { facts, headers, toast, value } from "../ui.js";

/** `parked`: why and when a group set it aside. */
export async function inspect(stream, { partition, offset }, parked) {
  const still = staying();
  try {
    const whole = await get("/stream/record", { stream, partition, offset });
    if (!still()) return;
    show(`Record ${partition}:${offset}`, [
      facts([["Time", moment(whole.timestamp_ms)], ["Key", whole.key ?? "–"], ["Size", bytes(whole.value.size_bytes)], ["Type", whole.value.type],
        ...(parked ? [["Parked", moment(parked.parked_ms)], ["Deliveries", count(parked.deliveries)]] : [])]),
      parked?.reason ? h("div", h("h3", "Reason"), value({ type: "text", text: parked.reason })) : null,
      value(whole.value), headers(whole.headers),
    ], { wide: true });
  } catch (error) {
    toast(error.message, true);
  }
}
