// Two programs: what is measured before and after, and every change.

/** Stands for the document of the difference where figures are made. */
const differenceSide = () => ({ data: DATA, number: "", name: null });

function differenceSection() {
  const { diff } = DATA;
  return section(
    "difference",
    ["Difference", "What differs"],
    el("p", { class: "verdict" }, differenceWords(diff)),
    causes(diff),
    doubts(diff),
    measuredTable(diff),
    el("h3", {}, "Changes"),
    changeList(diff),
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

/** Why the program is judged so, what counts most first. */
function causes(diff) {
  if (!diff.judged.causes.length) return null;
  return el(
    "ul",
    { class: "changes" },
    diff.judged.causes.map((cause) => {
      const [mark, kind] = JUDGED[cause.judgement];
      const words = `${cause.judgement}: ${cause.message}`;
      return el("li", {}, el("span", { class: kind }, mark), " ", prose(words, 400));
    }),
  );
}

function doubts(diff) {
  const words = [...diff.judged.notes, ...diff.judged.caveats, ...diff.not_understood.map((name) => `not everything in ${name} was understood`)];
  if (diff.unsure) words.push(`bytes or executions of ${plural(diff.unsure, "collective")} are not known exactly`);
  if (measured(diff).some(([, before, after, , ...bounds]) => isBetweenBounds(at(DATA, before), at(DATA, after), bounds)))
    words.push("a change is unknown where the bounds of both sides do not bound their difference");
  return words.length
    ? el(
        "ul",
        { class: "note" },
        words.map((word) => el("li", {}, "▲ ", prose(word, 400))),
      )
    : null;
}

/** Rows of [label, path before, path after, unit, bound before, bound after]. */
function measured(diff) {
  const rows = [
    [
      "sent per step",
      "diff.totals.old.wire_bytes",
      "diff.totals.new.wire_bytes",
      "bytes",
      diff.totals.old.bound,
      diff.totals.new.bound,
    ],
  ];
  diff.tallies.forEach((tally, index) =>
    rows.push([
      `${tally.kind} ${tally.axes || "none"}${tally.axes_guessed ? "?" : ""}`,
      `diff.tallies.${index}.old.wire_bytes`,
      `diff.tallies.${index}.new.wire_bytes`,
      "bytes",
      tally.old.bound,
      tally.new.bound,
    ]),
  );
  rows.push(
    ["peak memory", "diff.peak_bytes.0", "diff.peak_bytes.1", "bytes", "exact", "exact"],
    ["predicted step", "diff.step_us.0", "diff.step_us.1", "time", ...diff.step_bounds.map((bound) => bound ?? "exact")],
  );
  return rows.filter(([, before, after]) => at(DATA, before) !== null || at(DATA, after) !== null);
}

function measuredTable(diff) {
  const side = differenceSide();
  const rows = measured(diff).map(([label, before, after, unit, boundBefore, boundAfter]) => [
    el("th", { scope: "row" }, nameOf(label, { most: 60 })),
    figure(side, before, unit, { bound: boundBefore }),
    figure(side, after, unit, { bound: boundAfter }),
    changeWords(at(DATA, before), at(DATA, after), unit, [boundBefore, boundAfter]),
  ]);
  return tableOf(
    side,
    "What one device sends and takes",
    ["per device", ">before", ">after", ">change"],
    rows,
    "measured",
  );
}

/** The bound of a difference: what is subtracted is at most so much where it is at least so much, and the reverse. */
function boundOfChange([before, after]) {
  const reversed = { "at most": "at least", "at least": "at most" };
  return addBounds(after, reversed[before] ?? before);
}

function isBetweenBounds(before, after, bounds) {
  return before !== null && after !== null && boundOfChange(bounds) === "unknown";
}

/** How much more or less, with an arrow and a sign, so that no colour has to be seen; a bound where it is only one. */
function changeWords(before, after, unit, bounds) {
  if (before === null || after === null || isBetweenBounds(before, after, bounds))
    return el("span", { class: "unknown" }, "unknown");
  const mark = MARKS[boundOfChange(bounds)];
  if (before === after) return mark ? mark + written(0, unit) : "=";
  const more = after > before;
  const words = `${more ? "▲" : "▼"} ${mark}${more ? "+" : "−"}${written(Math.abs(after - before), unit)}`;
  return el("span", { class: more ? "bad" : "fewer" }, `${words}${mark ? "" : ratioWords(before, after)}`);
}

/** How much that is beside what was there: as a share, or as a factor where that is 10 or more. */
function ratioWords(before, after) {
  if (!before) return "";
  const factor = after / before;
  if (factor >= 10) return ` (×${factor < 1e15 ? WRITTEN.count(Math.round(factor)) : factor.toExponential(1)})`;
  return ` (${factor > 1 ? "+" : "−"}${share(Math.abs(factor - 1))})`;
}

function changeList(diff) {
  if (!diff.changes.length) return note("There are none.");
  return el(
    "ul",
    { class: "changes" },
    diff.changes.slice(0, 200).map((change) => {
      const [mark, kind] = change.increase
        ? ["▲", "bad"]
        : change.kind === "regrouped" || change.kind === "equivalent spelling"
          ? ["≈", "info"]
          : change.kind === "another reduction"
            ? ["≠", "bad"]
            : ["▼", "fewer"];
      return el(
        "li",
        { class: "mono" },
        el("span", { class: kind }, mark),
        " ",
        el("span", { class: "badge" }, change.kind),
        " ",
        nameOf(change.text, { most: 400 }),
      );
    }),
    diff.changes.length > 200 ? note(`and ${WRITTEN.count(diff.changes.length - 200)} more`) : null,
  );
}
