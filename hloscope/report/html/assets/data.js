// The data, read by path. A path names a value of the JSON that `--format json` writes.

let DATA = null;
/** The programs on the page: one, or two that are compared. */
let sides = [];

/** The value at a path such as `collectives.3.time_us` of a document; undefined where there is none. */
function at(data, path) {
  let found = data;
  for (const step of typeof path === "string" ? path.split(".") : path) {
    if (found === null || found === undefined) return undefined;
    found = found[step];
  }
  return found;
}

/** One program: its documents, and what is asked of them more than once. */
class Side {
  constructor(data, number, name) {
    this.data = data;
    this.number = number;
    this.name = name;
    this.found = data.analysis;
    this.timeline = data.timeline;
    this.rows = this.found.collectives.map((collective, index) => new Row(this, collective, index));
    this.explained = new Map();
    for (const one of data.explained) for (const number of one.numbers) this.explained.set(number - 1, one);
    this.instructions = new Map(); // by computation and name, of those around which the page has the HLO
    for (const { name, instructions } of data.hlo?.computations ?? []) {
      this.instructions.set(name, new Map(instructions.map((one) => [one.name, one])));
    }
    this.byPlace = new Map(this.rows.map((row) => [`${row.of.computation}/${row.of.name}`, row]));
  }

  /** The frames of a stack, innermost first. */
  stack(number) {
    const rows = number === null || number === undefined ? [] : (this.found.stacks?.[number] ?? []);
    return rows.map((row) => this.frame(row));
  }

  frame(number) {
    const frame = number === null || number === undefined ? null : this.found.frames?.[number];
    return frame ? { function: null, column: null, ...frame } : null;
  }

  get stepUs() {
    return this.found.time?.step_us ?? null;
  }
}

const LIBRARIES = ["site-packages", "dist-packages", "<frozen", "<string>"];

/** The innermost frame that is not a library's; the innermost of all where every frame is one. */
function usersFrame(frames) {
  return frames.find((frame) => !LIBRARIES.some((mark) => frame.file.includes(mark))) ?? frames[0] ?? null;
}

function placeOf(frame) {
  return frame.line ? `${frame.file}:${frame.line}` : frame.file;
}

/** `moe.py:31 in expert`: no folders, no enclosing functions. */
function shortPlace(frame) {
  const file = frame.file.split(/[/\\]/).pop();
  const own = (frame.function ?? "")
    .replace(/(\.<locals>\.<(list|set|dict)comp>)+$/, "")
    .split("<locals>.")
    .pop();
  const place = frame.line ? `${file}:${frame.line}` : file;
  return ["", "<module>", "<lambda>"].includes(own) ? place : `${place} in ${own}`;
}

/** A collective, with what is derived from it once. */
class Row {
  constructor(side, of, index) {
    this.side = side;
    this.of = of;
    this.index = index;
    this.frames = side.stack(of.source);
    this.frame = usersFrame(this.frames);
    const part = of.part === null || of.part === undefined ? null : side.found.parts[of.part];
    this.part = { module: null, layers: [], phase: null, role: null, arguments: [], ...part };
    this.partLine = side.frame(this.part.line) ?? this.frame;
    this.bound = rowBound(of);
    this.axes = of.axes === null ? axesUnknown(side, of) : of.axes.join(",") || "none";
    this.place = this.frame ? shortPlace(this.frame) : `%${of.name}, HLO line ${of.line}`;
    this.line = this.partLine ? shortPlace(this.partLine) : `%${of.name}`;
    this.module = this.part.module ?? this.line;
    this.words = [
      of.name,
      of.kind,
      this.axes,
      this.place,
      this.module,
      this.part.phase,
      this.part.role,
      of.why,
      of.op_name,
      ...of.operand_shapes,
      ...of.result_shapes,
      ...this.part.arguments,
    ]
      .join(" ")
      .toLowerCase();
  }

  /** A time of one execution, per step; null where it is not priced. */
  perStep(name) {
    return this.of[name] === null || this.of[name] === undefined ? null : this.of[name] * this.of.executions;
  }
}

function rowBound(of) {
  const unknown = of.wire_bytes === null || of.payload_bytes === null;
  return addBounds(of.executions_bound, unknown ? "at least" : of.bytes_bound);
}

function axesUnknown(side, of) {
  const groups = side.found.device_groups?.[of.groups] ?? [];
  if (!groups.length) return "unknown";
  return of.group_size === null
    ? plural(groups.length, "pair")
    : `${plural(groups.length, "group")} of ${of.group_size}`;
}

/** `layers[0-35].mlp.gate`: a folded path with the numbers that its first `*` stands for. */
function withLayers(module, layers) {
  if (!layers.length) return module;
  const ranges = [];
  for (const number of [...new Set(layers)].sort((a, b) => a - b)) {
    const last = ranges[ranges.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else ranges.push([number, number]);
  }
  const text = `[${ranges.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(", ")}]`;
  if (module.includes(".*")) return module.replace(".*", text);
  return module.replace("*", layers.length === 1 ? String(layers[0]) : text);
}
