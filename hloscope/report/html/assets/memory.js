// HBM at its peak: what lies there, by part of the model or by role, and the largest buffers.

const MOST_BUFFERS = 60;
const MOST_PARTS = 24;
const ROLE_WORDS = {
  argument: "argument",
  output: "output with memory of its own",
  saved: "saved for the backward pass",
  gathered: "gathered",
  copy: "copy",
  temporary: "temporary",
  constant: "constant",
};

function memorySection(sides) {
  return section("memory", ["HBM", "HBM at its peak"], pair(sides, memoryPeak));
}

function memoryPeak(side) {
  const peak = side.found.memory_peak;
  if (!peak)
    return note(
      "What lies in HBM at the peak is not known: the compiler's buffer assignment tells, of a function that is compiled here.",
    );
  const frame = usersFrame(side.stack(peak.source));
  const chooser = el(
    "select",
    { "aria-label": "Group buffers by", onchange: () => draw() },
    ["part of the model", "role"].map((words) => el("option", {}, words)),
  );
  const bars = el("ul", { class: "bars peak" });
  const draw = () => bars.replaceChildren(...peakGroups(side, chooser.value === "role"));
  draw();
  return el(
    "div",
    {},
    el(
      "p",
      {},
      figure(side, "analysis.memory_peak.live_bytes", "bytes"),
      " while ",
      nameOf(`%${peak.at}`),
      " runs",
      frame ? ` (${shortPlace(frame)})` : "",
      peak.fragmentation_bytes
        ? [
            "; ",
            figure(side, "analysis.memory_peak.fragmentation_bytes", "bytes"),
            " more is kept for temporaries and not taken then",
          ]
        : "",
    ),
    el("div", { class: "tools" }, el("label", {}, "Group by ", chooser)),
    bars,
    bufferTable(side),
  );
}

function peakGroups(side, byRole) {
  const peak = side.found.memory_peak;
  const groups = new Map();
  peak.buffers.forEach((buffer, index) => {
    const key = byRole ? ROLE_WORDS[buffer.role] : (side.data.peak_parts[index] ?? bufferPlace(side, buffer));
    (groups.get(key) ?? groups.set(key, []).get(key)).push(index);
  });
  const size = (indexes) =>
    indexes.reduce((sum, index) => sum + peak.buffers[index].bytes * peak.buffers[index].count, 0);
  const sorted = [...groups].sort(([, one], [, other]) => size(other) - size(one));
  const rest = sorted.slice(MOST_PARTS);
  const shown = sorted.slice(0, MOST_PARTS);
  if (rest.length) shown.push([plural(rest.length, "smaller part"), rest.flatMap(([, indexes]) => indexes)]);
  const rows = shown.map(([key, indexes]) =>
    peakRow(
      side,
      key,
      size(indexes),
      sumFigure(side, "analysis.memory_peak.buffers", indexes, "bytes", "bytes", { times: "count" }),
      rolesOf(peak, indexes),
    ),
  );
  return peak.other_bytes
    ? [
        ...rows,
        peakRow(
          side,
          "buffers too small to be told",
          peak.other_bytes,
          figure(side, "analysis.memory_peak.other_bytes", "bytes"),
          [],
        ),
      ]
    : rows;
}

/** The argument, or the line that makes a buffer, where no part of the model is known. */
function bufferPlace(side, buffer) {
  if (buffer.role === "argument") return buffer.name;
  const frame = usersFrame(side.stack(buffer.source));
  return frame ? shortPlace(frame) : `%${buffer.name}`;
}

/** What each role takes of a group, as pieces of its bar. */
function rolesOf(peak, indexes) {
  const roles = new Map();
  for (const index of indexes)
    roles.set(
      peak.buffers[index].role,
      (roles.get(peak.buffers[index].role) ?? 0) + peak.buffers[index].bytes * peak.buffers[index].count,
    );
  return [...roles].sort(([, one], [, other]) => other - one);
}

function peakRow(side, label, bytes, shown, roles) {
  const track = el("span", { class: "track", "aria-hidden": "true" });
  for (const [role, part] of roles.length ? roles : [["temporary", bytes]]) {
    const piece = el("span", { class: `fill role-${role}` });
    piece.style.width = `${(100 * part) / side.found.memory_peak.live_bytes}%`;
    track.append(piece);
  }
  return el(
    "li",
    {},
    nameOf(label, { most: 44, cls: "label" }),
    track,
    el("b", {}, shown),
    el(
      "small",
      {},
      roles.map(([role], index) => [
        index ? ", " : "",
        el("span", { class: `dot role-${role}`, "aria-hidden": "true" }),
        role,
      ]),
    ),
  );
}

const FREED_BY = { saved: "jax.checkpoint around the layer", gathered: "gather less at a time" };

function bufferTable(side) {
  const { buffers } = side.found.memory_peak;
  const shown = buffers.slice(0, MOST_BUFFERS);
  const label = `The ${shown.length < buffers.length ? "largest " : ""}${plural(shown.length, "buffer")}`;
  const heads = [">bytes", "what", "array", "made at", "would free it (not tried)"];
  return unfolding(label, () =>
    tableOf(
      side,
      "Buffers at the peak",
      heads,
      shown.map((buffer, index) => bufferCells(side, buffer, index)),
    ),
  );
}

function bufferCells(side, buffer, index) {
  const path = `analysis.memory_peak.buffers.${index}`;
  const frame = usersFrame(side.stack(buffer.source));
  const several =
    buffer.count > 1
      ? el("small", {}, figure(side, `${path}.count`, "count"), " x ", figure(side, `${path}.bytes`, "bytes"))
      : null;
  return [
    [sumFigure(side, "analysis.memory_peak.buffers", [index], "bytes", "bytes", { times: "count" }), several],
    ROLE_WORDS[buffer.role],
    [
      nameOf(buffer.role === "argument" ? buffer.name : `%${buffer.name}`, { most: 50 }),
      buffer.shape ? el("small", { class: "mono" }, nameOf(buffer.shape, { most: 44 })) : null,
    ],
    frame ? nameOf(shortPlace(frame), { most: 50 }) : "",
    buffer.donation_frees ? "donate it, for an output of its size" : (FREED_BY[buffer.role] ?? ""),
  ];
}
