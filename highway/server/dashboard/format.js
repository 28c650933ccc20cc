// Numbers, sizes and times as people read them.

export function number(value) {
  return Math.round(value).toLocaleString("en-US");
}

export function short(value) {
  if (value < 10_000) return number(value);
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return `${(value / size).toFixed(value < 100 * size ? 1 : 0)}${unit}`;
  }
  return number(value);
}

export function rate(value) {
  return value > 0 && value < 10 ? value.toFixed(1) : short(value);
}

// [number, unit]
export function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1024 || unit === "TiB") return [value < 10 && unit !== "B" ? value.toFixed(1) : value.toFixed(0), unit];
    value /= 1024;
  }
  return ["", ""];
}

export const sizeText = (bytes) => size(bytes).join(" ");

export function span(seconds) {
  if (seconds < 1) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 90) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 129_600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toFixed(1)} days`;
}

export function time(ms) {
  const date = new Date(ms);
  const two = (value, width = 2) => String(value).padStart(width, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${two(date.getMilliseconds(), 3)}`;
}

export function day(ms) {
  const date = new Date(ms);
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time(ms)}`;
}

export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0"));
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    const left = digits.slice(0, 8).join(" ").padEnd(23);
    lines.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${digits.slice(8).join(" ").padEnd(23)}  ${text}`);
  }
  return lines.join("\n");
}
