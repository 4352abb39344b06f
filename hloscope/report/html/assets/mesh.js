// The mesh on the physical slice, with what crosses each link; beside it what moves over which axis.

function meshSection(sides) {
  return section(
    "mesh",
    ["Mesh", "The mesh on the slice"],
    pair(sides, (side) =>
      el(
        "div",
        { class: "mesh" },
        side.data.mesh.picture
          ? picture(side.data.mesh.picture, "The slice, its links and what crosses them")
          : note(sentence(side, side.data.mesh.why_not)),
        side.rows.length ? axesAndKinds(side) : null,
      ),
    ),
  );
}

/** What each kind of collective sends over each axis, per step. */
function axesAndKinds(side) {
  const kinds = [...new Set(side.rows.map((row) => row.of.kind))];
  const axes = [...new Set(side.rows.map((row) => row.axes))];
  const rows = axes.map((axis) => [
    el("th", { scope: "row" }, el("span", { class: `chip ${axisClass(side, axis)}` }, nameOf(axis, { most: 40 }))),
    ...kinds.map((kind) => cellOf(side, axis, kind)),
  ]);
  return el(
    "div",
    {},
    el("h3", {}, "What one device sends per step, by axis and kind"),
    tableOf(side, "Bytes by axis and kind", ["axis", ...kinds.map((kind) => `>${kind}`)], rows),
  );
}

function cellOf(side, axis, kind) {
  const rows = side.rows.filter((row) => row.axes === axis && row.of.kind === kind).map((row) => row.index);
  if (!rows.length) return "";
  return [
    sumFigure(side, "analysis.collectives", rows, "wire_bytes_per_step", "bytes", { bound: boundOf(side, rows) }),
    el("small", {}, plural(rows.length, "place")),
  ];
}
