// Quantities for a person, letter for letter as hloscope's reports write them. Nothing here knows the document.

const MARKS = { exact: "", "at most": "≤", "at least": "≥", unknown: "~" };

/** A number with so many decimals; a tie goes to the even digit, as in Python. */
function fixed(value, digits) {
  const power = 10 ** digits;
  const scaled = value * power;
  const isTie = Math.abs(scaled % 1) === 0.5 && (value * 2 ** (digits + 1)) % 1 === 0;
  if (!isTie) return value.toFixed(digits);
  const low = Math.floor(scaled);
  return ((low % 2 === 0 ? low : low + 1) / power).toFixed(digits);
}

function threeDigits(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1000) return String(value);
  const decimals = Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
  return fixed(value, decimals);
}

function scaled(value, units) {
  if (Math.abs(value) > 0 && Math.abs(value) < 0.005) return `under 0.01 ${units[0]}`;
  for (const unit of units.slice(0, -1)) {
    if (Math.abs(value) < 999.5) return `${threeDigits(value)} ${unit}`;
    value /= 1000;
  }
  return `${threeDigits(value)} ${units[units.length - 1]}`;
}

function capacity(count) {
  for (const [unit, size] of [
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
  ]) {
    if (count >= size) return `${threeDigits(count / size)} ${unit}`;
  }
  return `${count} B`;
}

function share(value) {
  return value > 0 && value < 0.001 ? "under 0.1%" : `${fixed(100 * value, 1)}%`;
}

/** How each kind of figure is written. */
const WRITTEN = {
  bytes: (value) => scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"]),
  time: (value) => scaled(value, ["us", "ms", "s"]),
  flops: (value) => scaled(value, ["FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"]),
  count: (value) => Math.trunc(value).toLocaleString("en-US"),
  capacity,
  share,
};

function written(value, unit) {
  return value === null || value === undefined ? "unknown" : WRITTEN[unit](value);
}

/** The bound of a sum: equal bounds stay, exact yields, at most plus at least is unknown. */
function addBounds(one, other) {
  if (other === one || other === "exact") return one;
  return one === "exact" ? other : "unknown";
}

function plural(count, noun) {
  return count === 1 ? `1 ${noun}` : `${WRITTEN.count(count)} ${noun}s`;
}

/** Long text cut in its middle, where a name says least. */
function clipped(text, most = 120) {
  return text.length <= most ? text : `${text.slice(0, Math.ceil(most * 0.6))}…${text.slice(-Math.floor(most * 0.35))}`;
}
