// The headline: where the step goes, what moves over which axis, how full HBM is, and what to fix first.

const WAITS = {
  collective_us: ["waiting for collectives", "exposed"],
  hbm_us: ["waiting for copies within the device", "copies"],
  host_us: ["waiting for the host and its copies", "host"],
  kernel_us: ["waiting for other threads", "threads"],
  limit_us: ["what memory or the matrix units take besides", "limit"],
};

function summarySection(sides) {
  return section("summary", ["Summary"], pair(sides, summary));
}

function summary(side) {
  const { found } = side;
  return el(
    "div",
    { class: "narrows" },
    el("p", { class: "verdict" }, verdict(side)),
    found.time ? stepSplit(side) : note(noStep(found)),
    el("div", { class: "tiles" }, axisTile(side), memoryTile(side)),
    fixFirst(side),
  );
}

function noStep(found) {
  if (found.slice) return "No step is predicted.";
  return "No step is predicted: no TPU slice says how long anything takes. Name one, as in --slice v5e:2x4.";
}

function verdict(side) {
  const total = side.found.totals;
  if (!side.rows.length) {
    return total.bound === "exact"
      ? "Nothing moves between devices."
      : "No collective was found, but not everything was understood: at least 0 B per step move.";
  }
  const doubt = total.bound === "unknown" ? " Some counts are lower bounds, others upper bounds." : "";
  return [
    "One device sends ",
    figure(side, "analysis.totals.wire_bytes", "bytes", total),
    " per step, in ",
    figure(side, "analysis.totals.executions", "count", total),
    ` transfer${total.executions === 1 ? "" : "s"} from `,
    figure(side, "analysis.totals.collectives", "count"),
    ` collective${total.collectives === 1 ? "" : "s"}.`,
    doubt,
  ];
}

/** The parts of the step: [label, class, path in the side's data]. */
function stepParts(side) {
  if (!side.timeline) {
    return [
      ["computing", "compute", "analysis.time.compute_us"],
      ["waiting for communication", "exposed", "analysis.time.exposed_us"],
    ];
  }
  const waits = Object.entries(WAITS).map(([field, [label, kind]]) => [label, kind, `timeline.waits.${field}`]);
  return [["computing", "compute", "timeline.computing_us"], ...waits.filter(([, , path]) => at(side.data, path) > 0)];
}

function stepSplit(side) {
  const { time } = side.found;
  const parts = stepParts(side);
  const whole = side.timeline ? "timeline.step_us" : "analysis.time.step_us";
  const mark = MARKS[boundOfPart(side)];
  const words = parts.map(([label, , path]) => `${label} ${mark}${written(at(side.data, path), "time")}`).join(", ");
  const bar = el(
    "div",
    { class: "split", role: "img", "aria-label": `The step: ${words}` },
    parts.map(([, kind, path]) => segment(kind, at(side.data, path) / at(side.data, whole))),
  );
  const rows = [
    ...parts.map(([label, kind, path]) => legendRow(side, label, kind, path, whole)),
    legendRow(side, "communication hidden behind computing", "hidden", "analysis.time.hidden_us", null),
  ];
  return el(
    "div",
    { class: "step" },
    el(
      "div",
      { class: written(time.step_us, "time").length > 8 ? "big long" : "big" },
      figure(side, "analysis.time.step_us", "time", time),
      el("small", {}, "predicted for one step"),
      el("small", {}, ...stepRange(side)),
    ),
    el("div", { class: "where" }, bar, hiddenBar(side), el("ul", { class: "legend" }, rows), stepRemarks(side)),
  );
}

/** The range of the step, where there is one: the cost of a kernel may be unknown, and its error with it. */
function stepRange(side) {
  const { time } = side.found;
  if (side.data.inaccurate) return [side.data.inaccurate];
  if (time.least_us === time.most_us) return [];
  return [
    figure(side, "analysis.time.least_us", "time"),
    " to ",
    figure(side, "analysis.time.most_us", "time"),
    ", within the error of the cost model",
  ];
}

function segment(kind, part) {
  const made = el("span", { class: `swatch ${kind}` });
  made.style.flexGrow = String(Math.max(part, 0));
  return made;
}

/** The bound of a part of the step: where another branch may be taken, or something take longer, it can be more or less. */
function boundOfPart(side) {
  return side.found.time.bound === "exact" ? "exact" : "unknown";
}

/** Communication that runs beside computation, on the scale of the bar above. */
function hiddenBar(side) {
  const { time } = side.found;
  const part = Math.min(time.hidden_us / time.step_us, 1);
  if (!(part > 0)) return null;
  return el(
    "div",
    { class: "split thin", "aria-hidden": "true" },
    segment("hidden", part),
    segment("nothing", 1 - part),
  );
}

function legendRow(side, label, kind, path, whole) {
  const of = whole ? shareFigure(side, path, whole) : null;
  return el(
    "li",
    {},
    el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
    el("span", { class: "label" }, label),
    el("b", {}, figure(side, path, "time", { bound: boundOfPart(side) })),
    el("span", { class: "share" }, of ?? ""),
  );
}

function stepRemarks(side) {
  const { time } = side.found;
  const words = [];
  if (time.peak_flops_share !== null)
    words.push([
      figure(side, "analysis.time.peak_flops_share", "share", { bound: boundOfPart(side) }),
      " of the peak FLOP/s",
    ]);
  if (time.hbm_us > 0) words.push(["memory-bound ", figure(side, "analysis.time.hbm_us", "time", { bound: boundOfPart(side) })]);
  if (time.first_step_us > time.step_us)
    words.push(["first step ", figure(side, "analysis.time.first_step_us", "time", time)]);
  if (time.basis === "roofline") words.push(["from FLOPs and bytes at the chip's peak, which no program reaches"]);
  if (time.unpriced_kernels.length)
    words.push([`at least: nothing says what ${time.unpriced_kernels.join(", ")} costs`]);
  return el(
    "p",
    { class: "note" },
    words.flatMap((word, index) => (index ? [" · ", word] : [word])),
  );
}

function axisTile(side) {
  const { by_axis: axes, by_link: links, wire_bytes: all } = side.found.totals;
  const rows = Object.keys(axes).map((axis) =>
    barRow(side, axisWords(side, axis), ["analysis", "totals", "by_axis", axis], all, axisClass(side, axis)),
  );
  const several = Object.keys(links).some((link) => link !== "ici");
  return el(
    "div",
    { class: "tile" },
    el("h3", {}, "Bytes one device sends per step, by mesh axis"),
    rows.length ? el("ul", { class: "bars" }, rows) : note(noneOf(side, "Nothing is sent", "nothing that is sent was found")),
    several
      ? [
          el("h3", {}, "By network"),
          el(
            "ul",
            { class: "bars" },
            Object.keys(links).map((link) =>
              barRow(
                side,
                link === "ici" ? "ICI" : link === "dcn" ? "DCN" : link,
                ["analysis", "totals", "by_link", link],
                all,
                `link-${link}`,
              ),
            ),
          ),
          isInBoth(side.found.totals)
            ? note("Transfers over both networks are counted once in each, so these add up to more than all transfers of the step.")
            : null,
        ]
      : null,
    side.found.mesh === null ? note("Axes are unknown without a mesh: give it as --mesh X=4,Y=2.") : null,
    side.rows.some((row) => row.of.axes_guessed)
      ? note("? marks guessed axes: the text does not say which axis crosses slices, as --dcn would.")
      : null,
  );
}

/** Whether transfers over both networks, which are counted in each, make their sum more than the whole. */
function isInBoth({ by_link: links, executions }) {
  return Object.values(links).reduce((sum, link) => sum + link.executions, 0) > executions;
}

function axisWords(side, axis) {
  if (axis === "?") return "unknown";
  const guessed = side.rows.some((row) => row.of.axes_guessed && (row.of.axes ?? ["?"]).join(",") === axis);
  return (axis || "none") + (guessed ? "?" : "");
}

/** The colour of a mesh axis, by its place in the mesh; of several together the first one's. */
function axisClass(side, axes) {
  const place = side.found.mesh?.axis_names.indexOf(axes.split(",")[0].split(":")[0]) ?? -1;
  return place < 0 ? "axis" : `axis axis-${place % 6}`;
}

function barRow(side, label, path, all, kind) {
  const total = at(side.data, path);
  const bar = el("span", { class: `fill ${kind}` });
  bar.style.width = `${all ? Math.max((100 * total.wire_bytes) / all, 0.5) : 0}%`;
  return el(
    "li",
    {},
    el("bdi", { class: "label", title: label.length > 40 ? label : null }, afterCommas(clipped(label, 40))),
    el("span", { class: "track", "aria-hidden": "true" }, bar),
    el("b", {}, byKeys(side, [...path, "wire_bytes"], "bytes", total.bound)),
    el(
      "small",
      {},
      byKeys(side, [...path, "executions"], "count", total.bound),
      ` transfer${total.executions === 1 ? "" : "s"}`,
    ),
  );
}

/** As `figure`, of a path whose steps may hold dots. */
function byKeys(side, path, unit, bound = "exact") {
  const value = at(side.data, path);
  if (value === null || value === undefined) return el("span", { class: "unknown" }, "unknown");
  return el(
    "data",
    { value: String(value), "data-keys": JSON.stringify([side.number, ...path]), "data-unit": unit },
    MARKS[bound] + written(value, unit),
  );
}

function memoryTile(side) {
  const { memory } = side.found;
  const title = el("h3", {}, "HBM of one device at its peak");
  const known = memory.peak_bytes !== null ? "peak_bytes" : memory.fits !== false ? "data_bytes" : null;
  if (known === null || (memory[known] ?? null) === null) {
    const why =
      memory.fits === false
        ? "More than there is: the program does not fit. The compiler does not tell what its code takes."
        : "Not known: HLO text does not tell what the compiler allocates.";
    return el(
      "div",
      { class: "tile" },
      title,
      el("p", { class: memory.fits === false ? "bad" : "note" }, why),
      memoryParts(side),
    );
  }
  const used = memory.hbm_bytes ? memory[known] / memory.hbm_bytes : null;
  const over = memory.fits === false || (memory.fits === null && used > 1);
  const bar = el("span", { class: `fill ${over ? "over" : used > 0.9 ? "near" : "memory"}` });
  bar.style.width = `${Math.min(100, 100 * (used ?? 0))}%`;
  return el(
    "div",
    { class: "tile" },
    title,
    el(
      "p",
      { class: "middle" },
      el("b", {}, figure(side, `analysis.memory.${known}`, "bytes")),
      memory.hbm_bytes
        ? [
            " of ",
            figure(side, "analysis.memory.hbm_bytes", "capacity"),
            " (",
            shareFigure(side, `analysis.memory.${known}`, "analysis.memory.hbm_bytes"),
            ")",
          ]
        : "",
    ),
    known === "data_bytes" ? el("p", { class: "note" }, "Without the program's code, whose size is unknown.") : null,
    el("span", { class: "track tall", "aria-hidden": "true" }, bar),
    over
      ? el("p", { class: "bad" }, "✗ It does not fit.")
      : used > 0.9
        ? el("p", { class: "warn" }, "▲ Little is left.")
        : null,
    memoryParts(side),
  );
}

function memoryParts(side) {
  const parts = [
    ["arguments", "argument_bytes"],
    ["outputs", "output_bytes"],
    ["temporaries", "temp_bytes"],
    ["code", "generated_code_bytes"],
    ["less donated", "alias_bytes"],
  ];
  const known = parts.filter(
    ([, field]) => side.found.memory[field] !== null && (field !== "alias_bytes" || side.found.memory[field]),
  );
  return known.length
    ? el(
        "p",
        { class: "note" },
        known.flatMap(([label, field], index) => [
          index ? " · " : "",
          `${label} `,
          figure(side, `analysis.memory.${field}`, "bytes"),
        ]),
      )
    : null;
}

function fixFirst(side) {
  const errors = side.found.findings
    .map((finding, index) => [finding, index])
    .filter(([finding]) => finding.severity === "error" && finding.allowed === null);
  const wrong = errors.slice(0, 3).map(([finding, index]) => errorFirst(side, finding, index));
  const items = [...wrong, ...side.data.first.map((one) => costly(side, one))];
  return items.length ? el("div", { class: "first" }, el("h3", {}, "What to fix first"), el("ol", {}, items)) : null;
}

/** What makes the program wrong comes before what makes it slow. */
function errorFirst(side, finding, index) {
  const known = ["why", "fix"].filter((label) => finding[label]);
  return el(
    "li",
    { class: "error" },
    el("div", { class: "headline" }, el("span", {}, "✗ ", prose(finding.message, 300))),
    el(
      "dl",
      {},
      known.map((label) => [el("dt", {}, label), el("dd", {}, prose(finding[label], 600))]),
    ),
    el("a", { href: `#finding-${side.number}-${index}` }, finding.rule),
  );
}

function costly(side, one) {
  const rows = one.numbers.map((number) => number - 1);
  const about = one.about.filter(([label]) => label);
  const [, where] = one.about.find(([label]) => !label) ?? ["", ""];
  return el(
    "li",
    {},
    el("div", { class: "headline" }, nameOf(one.headline, { most: 110 })),
    el(
      "p",
      {},
      side.found.time
        ? [
            el(
              "b",
              {},
              sumFigure(side, "analysis.collectives", rows, "exposed_us", "time", {
                times: "executions",
                needsAll: true,
                bound: boundOf(side, rows),
              }),
            ),
            " exposed · ",
          ]
        : null,
      el(
        "b",
        {},
        sumFigure(side, "analysis.collectives", rows, "wire_bytes_per_step", "bytes", { bound: boundOf(side, rows) }),
      ),
      " sent · ",
      where.split(" in ").slice(1).join(" in "),
    ),
    el(
      "dl",
      {},
      about.map(([label, words]) => [el("dt", {}, label), el("dd", {}, prose(words, 600))]),
    ),
    el(
      "button",
      { type: "button", class: "quiet", onclick: () => side.table.only(rows, one.headline) },
      `Show ${rows.length === 1 ? "it" : `all ${WRITTEN.count(rows.length)}`} below`,
    ),
  );
}

/** The bound of a sum over rows; of those whose bytes are unknown, sums know by themselves. */
function boundOf(side, rows, of = (row) => (row.of.wire_bytes === null ? row.of.executions_bound : row.bound)) {
  return rows.reduce((bound, index) => addBounds(bound, of(side.rows[index])), "exact");
}
