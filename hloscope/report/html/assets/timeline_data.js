// The intervals of a computation, laid out in lanes: sorted columns that drawing can search.

const UNIT_LANES = [
  ["core", "Core"],
  ["ici", "ICI"],
  ["dcn", "DCN"],
  ["copy within the device", "HBM copies"],
  ["copy from the host", "From host"],
  ["copy to the host", "To host"],
  ["host", "Host"],
  ["another thread", "Other threads"],
];
const KINDS = ["compute", "exposed", "copies", "host", "threads", "limit", "loop", "hidden", "moving", "level", "busy"];
const KIND_OF_WAIT = { collective: "exposed", hbm: "copies", host: "host", kernel: "threads", limit: "limit" };
const MOST_ROWS = 8;

/** One row of a lane: its pieces by when they begin, none of which overlaps the next. */
class LaneRow {
  constructor(pieces) {
    this.of = pieces.map((piece) => piece.of);
    this.begin = Float64Array.from(pieces, (piece) => piece.begin);
    this.end = Float64Array.from(pieces, (piece) => piece.end);
    this.kind = Uint8Array.from(pieces, (piece) => KINDS.indexOf(piece.kind));
  }

  /** The first interval that ends behind a time. */
  from(time) {
    let [low, high] = [0, this.end.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

function kindOf(one) {
  if (one.wait) return KIND_OF_WAIT[one.wait];
  if (one.unit === "core") return one.runs.length ? "loop" : "compute";
  return one.collective ? "hidden" : "moving";
}

/** An interval as it is drawn: of a collective's transfer what the core waits for it meanwhile, and what is hidden. */
function piecesOf(one, waits) {
  const own = one.wait || !one.collective ? [] : (waits.get(one.collective) ?? []);
  const pieces = [];
  let begin = one.begin_us;
  for (const wait of own) {
    const [from, to] = [Math.max(wait.begin_us, begin), Math.min(wait.end_us, one.end_us)];
    if (to <= from) continue;
    if (from > begin) pieces.push({ of: one, begin, end: from, kind: kindOf(one) });
    pieces.push({ of: one, begin: from, end: to, kind: "exposed" });
    begin = to;
  }
  if (one.end_us > begin || !pieces.length) pieces.push({ of: one, begin, end: one.end_us, kind: kindOf(one) });
  return pieces;
}

function waitsByCollective(intervals) {
  const waits = new Map();
  for (const one of intervals) {
    if (one.wait && one.collective)
      (waits.get(one.collective) ?? waits.set(one.collective, []).get(one.collective)).push(one);
  }
  return waits;
}

/** Puts intervals that overlap into rows of their own; what finds no row within the last joins that one. */
function rowsOf(intervals, waits) {
  const [rows, ends] = [[], []];
  for (const one of intervals) {
    let row = ends.findIndex((end) => end <= one.begin_us + 1e-9);
    if (row < 0) row = rows.length < MOST_ROWS ? rows.push([]) - 1 : ends.indexOf(Math.min(...ends));
    rows[row].push(one);
    ends[row] = Math.max(ends[row] ?? 0, one.end_us);
  }
  return rows.map((row) => new LaneRow(row.flatMap((one) => piecesOf(one, waits))));
}

/** What is taken of HBM during each interval of the core; of what runs computations, the most of theirs. */
function levelLane(computation, liveIn) {
  const pieces = computation.intervals
    .filter((one) => one.unit === "core" && one.end_us > one.begin_us)
    .map((one) => ({ of: one, begin: one.begin_us, end: one.end_us, kind: "level", bytes: liveOf(one, liveIn) }))
    .filter((piece) => piece.bytes !== null);
  if (!pieces.length) return [];
  const row = new LaneRow(pieces);
  return [{ key: "level", label: "HBM in use", rows: [row], level: Float64Array.from(pieces, (piece) => piece.bytes) }];
}

/** Bytes that buffers take of HBM during an interval, at the most; null where that is not known. */
function liveOf(one, liveIn) {
  const inside = one.runs.filter((run) => run.times > 0).map((run) => liveIn(run.computation));
  const known = [one.live_bytes, ...inside].filter((bytes) => bytes !== null);
  return known.length ? Math.max(...known) : null;
}

function laneKey(one) {
  return one.unit === "ici" && one.links.length ? `ici ${one.links.join(" ")}` : one.unit;
}

/** What takes time on the core and stands for what it runs, such as a loop. */
function foldedIn(intervals) {
  return intervals.filter((one) => one.unit === "core" && one.runs.length && one.end_us > one.begin_us);
}

/** How long each lane but the core's is in use in one execution, with what is folded; `sharesOf` tells of that. */
function busyTimes(intervals, sharesOf) {
  const spans = new Map();
  for (const one of [...intervals].sort((each, other) => each.begin_us - other.begin_us)) {
    if (one.unit === "core" || !(one.end_us > one.begin_us)) continue;
    const known = spans.get(laneKey(one)) ?? spans.set(laneKey(one), []).get(laneKey(one));
    const last = known[known.length - 1];
    if (last && one.begin_us < last[1]) last[1] = Math.max(last[1], one.end_us);
    else known.push([one.begin_us, one.end_us]);
  }
  const length = (known, from, to) =>
    known.reduce((sum, [begin, end]) => sum + Math.max(0, Math.min(end, to) - Math.max(begin, from)), 0);
  const times = new Map([...spans].map(([key, known]) => [key, length(known, -Infinity, Infinity)]));
  for (const one of foldedIn(intervals)) {
    for (const [key, part] of sharesOf(one)) {
      const free = one.end_us - one.begin_us - length(spans.get(key) ?? [], one.begin_us, one.end_us);
      times.set(key, (times.get(key) ?? 0) + part * free);
    }
  }
  return times;
}

/** Of what is folded, the share of its time in which each lane is in use inside it. */
function busyRows(computation, sharesOf) {
  const by = new Map();
  for (const one of foldedIn(computation.intervals)) {
    for (const [key, part] of sharesOf(one)) {
      const piece = { of: one, begin: one.begin_us, end: one.end_us, kind: "busy", part };
      if (part > 0) (by.get(key) ?? by.set(key, []).get(key)).push(piece);
    }
  }
  const rowOf = (pieces) => ({ row: new LaneRow(pieces), parts: Float64Array.from(pieces, (piece) => piece.part) });
  return new Map([...by].map(([key, pieces]) => [key, rowOf(pieces)]));
}

/** One execution of a computation as lanes. */
function lanesOf(computation, liveIn, sharesOf) {
  const by = new Map();
  const waits = waitsByCollective(computation.intervals);
  for (const one of computation.intervals)
    if (one.end_us > one.begin_us) (by.get(laneKey(one)) ?? by.set(laneKey(one), []).get(laneKey(one))).push(one);
  const busy = busyRows(computation, sharesOf);
  const order = (key) => UNIT_LANES.findIndex(([unit]) => key === unit || key.startsWith(`${unit} `));
  const keys = [...new Set([...by.keys(), ...busy.keys()])];
  keys.sort((one, other) => order(one) - order(other) || (one < other ? -1 : 1));
  const lanes = keys.map((key) => ({
    key,
    label: laneLabel(key),
    rows: by.has(key) ? rowsOf(by.get(key), waits) : [new LaneRow([])],
    busy: busy.get(key) ?? null,
  }));
  return [...lanes, ...levelLane(computation, liveIn)];
}

function laneLabel(key) {
  const found = UNIT_LANES.find(([unit]) => key === unit);
  if (found) return found[1];
  const links = key.slice(4).split(" ");
  const axes = [...new Set(links.map((link) => link.slice(0, -1)))];
  return `ICI ${axes.map((axis) => axis + (["+", "-"].every((way) => links.includes(axis + way)) ? "±" : links.find((link) => link.slice(0, -1) === axis).slice(-1))).join(" ")}`;
}

function intervalName(one) {
  if (one.wait === "limit") return "memory or matrix units";
  if (one.collective) return `%${one.collective.split("/").pop()}`;
  return one.wait ? `%${one.waits_for ?? one.name}` : `%${one.name ?? "?"}`;
}

/** How long an interval is, with its bound. */
function intervalTime(one) {
  return MARKS[one.bound] + WRITTEN.time(one.end_us - one.begin_us);
}

/** The bound of an interval's bytes: a copy's are known, those of a collective relate as its time does. */
function bytesBound(one) {
  return one.collective || one.unit === "core" ? one.bound : "exact";
}

/** What an interval is, in a few words. */
function intervalWords(one) {
  if (one.wait)
    return one.wait === "limit"
      ? "what memory or the matrix units take besides"
      : `waits for ${one.wait === "collective" ? "a collective" : one.wait === "hbm" ? "a copy within the device" : one.wait === "host" ? "the host" : "another thread"}`;
  if (one.runs.length)
    return `runs ${one.runs.map((run) => `${run.computation} ${run.bound === "exact" ? "" : MARKS[run.bound]}${WRITTEN.count(run.times)} time${run.times === 1 ? "" : "s"}`).join(", ")}`;
  return one.unit === "core" ? "computes" : one.collective ? "moves a collective's data" : "moves data";
}
