// Two programs: what is measured before and after, why, and every change.

/** Stands for the document of the difference where figures are made. */
const differenceSide = () => ({ data: DATA, number: "", name: null });

const MOST_CAUSES = 5;
const MOST_CHANGES = 10;
/** Letters of a sentence: no list in one is cut in the middle. */
const WHOLE = 20_000;

function differenceSection() {
  const { diff } = DATA;
  scaleSteps(diff);
  return section(
    "difference",
    ["Difference", "What differs"],
    el("div", { class: "changed" }, headline(diff), el("p", { class: "verdict" }, differenceWords(diff))),
    measuredTable(diff),
    causes(diff),
    doubts(diff),
    el("h3", {}, "Changes"),
    changeList(diff),
  );
}

/** Gives the bars of both steps in the summaries below one scale. */
function scaleSteps({ step_us: steps }) {
  const longest = Math.max(...steps);
  if (DATA.sides.length < 2 || steps.includes(null) || !(longest > 0)) return;
  steps.forEach((step, index) =>
    document.documentElement.style.setProperty(`--step-${index}`, String(step / longest)),
  );
}

/** What the program became: a mark, the class of its colour, and the word for all of it. */
const JUDGED = {
  worse: ["▲", "bad", "Worse"],
  different: ["≠", "bad", "Different"],
  better: ["▼", "fewer", "Better"],
  same: ["=", null, "The same"],
};

function differenceWords(diff) {
  const [mark, kind, words] = JUDGED[diff.judged.judgement];
  const said = [
    diff.changes.length ? `${plural(diff.changes.length, "change")} of what moves` : null,
    diff.unsure || diff.not_understood.length ? "as far as it is known" : null,
  ];
  return [el("b", { class: kind }, `${mark} ${words}`), ...said.filter(Boolean).map((part) => `, ${part}`)];
}

/** The step before and after, or what is sent where not both steps are known, and by how much it changes. */
function headline(diff) {
  const [step, sent] = [stepRow(diff), sentRow(diff)];
  const isTimed = step !== null && step.comparable && amountsOf(step).every((amount) => amount !== null);
  const row = isTimed ? step : sent;
  const [before, after] = sidesOf(row);
  const tie = isTimed && DATA.said.is_tie ? "a tie within the error of the prediction" : null;
  return el(
    "p",
    { class: "big" },
    el("span", { class: "then" }, before, " → ", after, ", ", ratio(row, tie !== null)),
    el("small", {}, separated([isTimed ? "predicted for one step" : "sent by one device per step", tie])),
  );
}

/** By how much a figure is more or less, as a share of what it was. */
function ratio(row, isTie) {
  const [before, after] = amountsOf(row);
  if (isUnknown(row)) return el("span", { class: "unknown" }, "change unknown");
  const mark = MARKS[boundOfChange(row.bounds)];
  if (before === after) return mark ? mark + share(0) : "unchanged";
  const kind = isTie ? null : after > before ? "bad" : "fewer";
  return el("span", { class: kind }, mark, before ? shareOfChange(before, after) : "new");
}

/** Why the program is judged so, what counts most first. */
function causes(diff) {
  const all = diff.judged.causes.map((cause, index) =>
    causeItem(cause, DATA.said.places[index], DATA.said.details[index]),
  );
  if (!all.length) return null;
  const rest = all.slice(MOST_CAUSES);
  return el(
    "div",
    { class: "causes" },
    el("h3", {}, "Causes"),
    el("ul", { class: "changes" }, all.slice(0, MOST_CAUSES)),
    rest.length ? unfolding(plural(rest.length, "more cause"), () => el("ul", { class: "changes" }, rest)) : null,
  );
}

function causeItem(cause, place, details) {
  const [mark, kind] = JUDGED[cause.judgement];
  return el(
    "li",
    {},
    el("span", { class: kind }, mark),
    " ",
    prose(`${cause.judgement}: ${cause.message}`, WHOLE),
    place ? [" ", nameOf(place, { cls: "name mono place" })] : null,
    details.length
      ? el(
          "dl",
          {},
          details.map(([label, words]) => [el("dt", {}, label), el("dd", {}, prose(words, WHOLE))]),
        )
      : null,
  );
}

function doubts(diff) {
  const words = [...diff.judged.notes, ...diff.judged.caveats, ...diff.not_understood.map((name) => `not everything in ${name} was understood`)];
  if (diff.unsure) words.push(`bytes or executions of ${plural(diff.unsure, "collective")} are not known exactly`);
  if (measured(diff).some((row) => isBetweenBounds(row)))
    words.push("a change is unknown where the bounds of both sides do not bound their difference");
  return words.length
    ? el(
        "ul",
        { class: "note" },
        words.map((word) => el("li", {}, "▲ ", prose(word, WHOLE))),
      )
    : null;
}

/** A row of what is measured: a name, where its amounts stand, how they are written, and how they relate to the truth. */
function measuredRow(label, paths, unit, bounds, { ranges = [null, null], comparable = true } = {}) {
  return { label, paths, unit, bounds: bounds.map((bound) => bound ?? "exact"), ranges, comparable };
}

function sentRow({ totals }) {
  const paths = ["diff.totals.old.wire_bytes", "diff.totals.new.wire_bytes"];
  return measuredRow("sent per step", paths, "bytes", [totals.old.bound, totals.new.bound]);
}

/** The step with its ranges; one that is only a bound has none. A baseline's is rounded, that of the document is not. */
function stepRow(diff) {
  const index = diff.judged.figures.findIndex((one) => one.name === "predicted step");
  if (index < 0) return null;
  const found = diff.judged.figures[index];
  const ranges = ["before", "after"].map((side, number) =>
    found[`${side}_range`] && (diff.step_bounds[number] ?? "exact") === "exact"
      ? `diff.judged.figures.${index}.${side}_range`
      : null,
  );
  const how = { ranges, comparable: found.comparable };
  return measuredRow(found.name, ["diff.step_us.0", "diff.step_us.1"], "time", diff.step_bounds, how);
}

function tallyRow(tally, index) {
  const paths = [`diff.tallies.${index}.old.wire_bytes`, `diff.tallies.${index}.new.wire_bytes`];
  const label = `${tally.kind} ${tally.axes || "none"}${tally.axes_guessed ? "?" : ""}`;
  return measuredRow(label, paths, "bytes", [tally.old.bound, tally.new.bound]);
}

/** The peak memory, the parts of it that differ, and the FLOPs. */
function otherRows(diff) {
  const [peak, parts, multiplied] = [[], [], []];
  diff.judged.figures.forEach((one, index) => {
    const paths = [`diff.judged.figures.${index}.before`, `diff.judged.figures.${index}.after`];
    const row = (unit) => measuredRow(one.name, paths, unit, [one.before_bound, one.after_bound], one);
    if (!one.before && !one.after) return;
    if (one.name === "memory: peak") peak.push(row("bytes"));
    else if (one.name.startsWith("memory: ") && one.before !== one.after) parts.push(row("bytes"));
    else if (one.name === "multiplied") multiplied.push(row("flops"));
  });
  return [...peak, ...parts, ...multiplied];
}

/** What is measured of both, the step first. */
function measured(diff) {
  return [stepRow(diff), sentRow(diff), ...diff.tallies.map(tallyRow), ...otherRows(diff)].filter(Boolean);
}

function amountsOf(row) {
  return row.paths.map((path) => at(DATA, path) ?? null);
}

function sidesOf(row) {
  return row.paths.map((path, index) => figure(differenceSide(), path, row.unit, { bound: row.bounds[index] }));
}

function measuredTable(diff) {
  const rows = measured(diff).map((row) => [
    el("th", { scope: "row" }, nameOf(row.label, { most: 60 })),
    ...sidesOf(row).map((amount, index) => [
      amount,
      row.ranges[index] ? el("small", {}, rangeOf(row.ranges[index])) : null,
      index === 0 && !row.comparable ? el("small", {}, "from another version of hloscope") : null,
    ]),
    changeWords(row),
  ]);
  return tableOf(
    differenceSide(),
    "What one device sends and takes",
    ["per device", ">before", ">after", ">change"],
    rows,
    "measured",
  );
}

function rangeOf(path) {
  const [least, most] = [0, 1].map((end) => figure(differenceSide(), `${path}.${end}`, "time"));
  return [least, " to ", most];
}

/** The bound of a difference: what is subtracted is at most so much where it is at least so much, and the reverse. */
function boundOfChange([before, after]) {
  const reversed = { "at most": "at least", "at least": "at most" };
  return addBounds(after, reversed[before] ?? before);
}

function isBetweenBounds(row) {
  return !amountsOf(row).includes(null) && boundOfChange(row.bounds) === "unknown";
}

function isUnknown(row) {
  return amountsOf(row).includes(null) || isBetweenBounds(row);
}

/** How much more or less, with an arrow and a sign, so that no colour has to be seen; a bound where it is only one. */
function changeWords(row) {
  const [before, after] = amountsOf(row);
  if (isUnknown(row) || !row.comparable)
    return el("span", { class: "unknown" }, row.comparable ? "unknown" : "not comparable");
  const mark = MARKS[boundOfChange(row.bounds)];
  if (before === after) return mark ? mark + written(0, row.unit) : "=";
  const more = after > before;
  const words = `${more ? "▲" : "▼"} ${mark}${signed(written(Math.abs(after - before), row.unit), more)}`;
  const share = mark || !before ? "" : ` (${shareOfChange(before, after)})`;
  const kind = row.label === "memory: aliased" ? null : more ? "bad" : "fewer"; // what is donated costs nothing
  return el("span", { class: kind }, el("span", { class: "amount" }, words), share);
}

/** What is written of a difference, with its sign before the number: `+34.0%`, `under −0.1%`. */
function signed(words, isMore) {
  return words.replace(/\d/, `${isMore ? "+" : "−"}$&`);
}

/** How much that is beside what was there: as a share, or as a factor where that is 10 or more. */
function shareOfChange(before, after) {
  const factor = after / before;
  if (factor >= 10) return `×${factor < 1e15 ? WRITTEN.count(Math.round(factor)) : factor.toExponential(1)}`;
  return signed(share(Math.abs(factor - 1)), factor > 1);
}

function changeList(diff) {
  const { changes } = DATA.said;
  if (!changes.length) return note("There are none.");
  const list = () => el("ul", { class: "changes" }, changes.map(changeItem));
  return changes.length > MOST_CHANGES ? unfolding(`All ${plural(diff.changes.length, "change")} of what moves`, list) : list();
}

const OTHERWISE = { regrouped: ["≈", "info"], "equivalent spelling": ["≈", "info"], "another reduction": ["≠", "bad"] };

function changeItem(change) {
  const otherwise = change.kinds.map((kind) => OTHERWISE[kind]).find(Boolean);
  const [mark, kind] = change.increase ? ["▲", "bad"] : (otherwise ?? ["▼", "fewer"]);
  return el(
    "li",
    { class: "mono" },
    el("span", { class: kind }, mark),
    " ",
    change.kinds.map((words) => [el("span", { class: "badge" }, words), " "]),
    nameOf(change.text, { most: WHOLE }),
  );
}
