/** Numbers, sizes and times for people. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A name as its Kafka client wrote it: what our names cannot hold is escaped, and marked at the end (`nexo/model/names.py`). */
export function unescaped(name) {
  if (!name.endsWith(":x")) return name;
  try {
    return decodeURIComponent(name.slice(0, -2).replaceAll("%", "%25").replaceAll(/:([0-9a-f]{2})/g, "%$1"));
  } catch {
    return name;
  }
}

export const DASH = "–";

export function count(value) {
  if (value === null || value === undefined) return DASH;
  return Math.abs(value) < 100_000 ? whole.format(value) : short.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return DASH;
  if (value >= 100_000) return short.format(value);
  return value > 0 && value < 9.95 ? value.toFixed(1) : whole.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return DASH;
  let left = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(left) < 1024) return `${left < 10 && unit !== "B" ? left.toFixed(1) : Math.round(left)} ${unit}`;
    left /= 1024;
  }
  return `${left.toFixed(1)} TiB`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function millis(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms === 0) return "0 ms";
  return ms < 10 ? `${ms.toFixed(2)} ms` : `${Math.round(ms)} ms`;
}

export function ago(ms) {
  if (!ms) return DASH;
  const passed = Date.now() - ms;
  return passed < 1500 ? "now" : `${duration(passed).replace(/ \d+ (s|m|h)$/, "")} ago`;
}

export function until(ms) {
  return ms <= Date.now() ? "now" : `in ${duration(ms - Date.now())}`;
}

const pad = (value, size = 2) => String(value).padStart(size, "0");

export function moment(ms) {
  if (!ms) return DASH;
  const date = new Date(ms);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clock(ms)}`;
}

export function clock(ms) {
  const date = new Date(ms);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** A field for `datetime-local`, in local time. */
export function localInput(ms) {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 19);
}

export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
