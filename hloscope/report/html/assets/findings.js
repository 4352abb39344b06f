// What rules found, those of one cause together, each with its page; and what else there is to know.

const SEVERITY = { error: ["✗", "bad"], warning: ["▲", "warn"], note: ["●", "info"] };
const MOST_PLACES = 20;

function findingsSection(sides) {
  return section(
    "findings",
    ["Findings"],
    pair(sides, (side) =>
      side.found.findings.length
        ? el(
            "div",
            { class: "findings" },
            byCause(side).map((places) => findingCard(side, places)),
          )
        : note("No rule found anything."),
    ),
  );
}

/** Findings that differ in nothing but places and quantities are one, as in the layers of an unrolled loop. */
function byCause(side) {
  const causes = new Map();
  side.found.findings.forEach((finding, index) => {
    const key = [
      finding.rule,
      finding.severity,
      finding.allowed,
      ...[finding.message, finding.why, finding.fix].map((words) =>
        (words ?? "").replace(/%[\w.-]+|\b\d[\d.,]*(?: ?(?:[kMGTP]?B|us|ms|s)\b|%)?/g, "#"),
      ),
    ].join("\n");
    (causes.get(key) ?? causes.set(key, []).get(key)).push(index);
  });
  return [...causes.values()];
}

function findingCard(side, places) {
  const finding = side.found.findings[places[0]];
  const [mark, kind] = SEVERITY[finding.severity];
  const details = ["why", "cost", "fix"]
    .filter((label) => finding[label])
    .map((label) => [el("dt", {}, label), el("dd", {}, prose(finding[label], 1500))]);
  return el(
    "article",
    { class: `finding ${kind}`, id: `finding-${side.number}-${places[0]}`, tabindex: "-1" },
    el(
      "p",
      { class: "headline" },
      el("span", { class: "badge" }, `${mark} ${finding.severity}`),
      " ",
      el("code", {}, finding.rule),
      finding.allowed ? el("span", { class: "badge good" }, "allowed") : null,
    ),
    el("p", {}, prose(finding.message, 1500)),
    finding.allowed ? note("Allowed: ", prose(finding.allowed, 400)) : null,
    el("dl", {}, details),
    el(
      "ul",
      { class: "places" },
      places.slice(0, MOST_PLACES).map((index) => findingPlace(side, index)),
    ),
    places.length > MOST_PLACES ? note(`and ${WRITTEN.count(places.length - MOST_PLACES)} more such places`) : null,
    places.slice(1).map((index) => el("a", { id: `finding-${side.number}-${index}` })),
    finding.source ? excerpt(side, finding.source) : null,
    rulePage(finding.rule),
  );
}

function findingPlace(side, index) {
  const finding = side.found.findings[index];
  const row = side.byPlace.get(`${finding.computation}/${finding.instruction}`);
  return el(
    "li",
    {},
    separated([
      finding.source && nameOf(finding.source, { most: 80, cls: "mono" }),
      finding.instruction && nameOf(`%${finding.instruction}`, { most: 60, cls: "mono" }),
      finding.line && `HLO line ${WRITTEN.count(finding.line)}`,
    ]),
    " ",
    row
      ? el("button", { type: "button", class: "quiet", onclick: () => side.table.reveal(row) }, "Show the collective")
      : null,
    finding.instruction ? hloButton(side, finding.computation, finding.instruction) : null,
  );
}

function rulePage(name) {
  const page = DATA.rules[name];
  if (!page) return null;
  return unfolding(`About ${name}`, () =>
    el(
      "div",
      { class: "page" },
      el("p", {}, prose(page.summary)),
      page.sections.map(([title, text]) => [
        el("h3", { class: "sub" }, title),
        title === "Example"
          ? el("p", { class: "example" }, prose(text, 3000))
          : text.split("\n\n").map((part) => el("p", {}, prose(part))),
      ]),
    ),
  );
}

function aboutSection(sides) {
  return section(
    "about",
    ["Basis", "What this rests on"],
    pair(sides, (side) =>
      el("div", {}, unmodelledPart(side), notesPart(side), rulesPart(side), matmulsPart(side), kernelsPart(side)),
    ),
  );
}

function unmodelledPart(side) {
  const { unmodelled } = side.found;
  return unmodelled.length
    ? [
        el("h3", { class: "sub" }, "Not understood"),
        el(
          "ul",
          {},
          unmodelled
            .slice(0, 50)
            .map((one) =>
              el(
                "li",
                {},
                prose(one.what, 400),
                ": ",
                prose(one.effect, 400),
                one.line ? ` (HLO line ${one.line})` : "",
              ),
            ),
        ),
      ]
    : null;
}

function notesPart(side) {
  const notes = [...new Set([...side.found.notes, ...(side.found.time?.notes ?? [])])];
  return notes.length
    ? [
        el("h3", { class: "sub" }, "Notes"),
        el(
          "ul",
          {},
          notes.map((words) => el("li", {}, prose(words, 600))),
        ),
      ]
    : null;
}

function rulesPart(side) {
  const rules = side.found.time?.rules ?? [];
  if (!rules.length) return null;
  const cells = (rule, index) => [
    rule.rule,
    figure(side, `analysis.time.rules.${index}.time_us`, "time"),
    figure(side, `analysis.time.rules.${index}.error`, "share"),
    rule.calibrated ? (rule.measured_once ? "once" : "yes") : "no",
  ];
  const heads = ["rule of the cost model", ">priced of this step", ">may be off by", "compared with measurements"];
  return unfolding("How the time is predicted", () =>
    tableOf(side, "Rules of the cost model", heads, rules.map(cells)),
  );
}

function matmulsPart(side) {
  const { matmuls } = side.found;
  if (!matmuls.length) return null;
  return unfolding(`Matrix multiplications, ${plural(matmuls.length, "line")}`, () =>
    el(
      "ul",
      {},
      matmuls
        .slice(0, 40)
        .map((one, index) =>
          el(
            "li",
            {},
            nameOf(matmulPlace(side, one), { most: 80 }),
            " ",
            "flops" in one ? figure(side, `analysis.matmuls.${index}.flops`, "flops") : null,
          ),
        ),
    ),
  );
}

function matmulPlace(side, one) {
  const frame = usersFrame(side.stack(one.source));
  return frame ? shortPlace(frame) : (one.name ?? "no line");
}

function kernelsPart(side) {
  const { kernels } = side.found;
  return kernels.length
    ? [
        el("h3", { class: "sub" }, "Kernels"),
        el(
          "ul",
          {},
          kernels.slice(0, 40).map((kernel) => el("li", {}, nameOf(kernel.name ?? "?", { most: 80 }))),
        ),
      ]
    : null;
}
