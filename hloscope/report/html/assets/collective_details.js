// What a collective's row unfolds to: why it is there, what to change, shapes, facts, source.

function collectiveDetails(row) {
  const { side, of } = row;
  const told = side.explained.get(row.index);
  return el(
    "div",
    { class: "inside" },
    el("div", {}, whyPart(row, told), triedPart(row, told), findingsPart(row)),
    el(
      "div",
      {},
      shapesPart(row),
      factsPart(row),
      sourcePart(row, told),
      el(
        "p",
        { class: "buttons" },
        side.view
          ? el(
              "button",
              {
                type: "button",
                onclick: () =>
                  side.view.find(of.computation, of.name) ? show(side.view.canvas) : say("It is not on the timeline"),
              },
              "Show on the timeline",
            )
          : null,
        hloButton(side, of.computation, of.name),
      ),
    ),
  );
}

function whyPart(row, told) {
  const steps = told?.steps ?? [];
  return [
    el("h3", { class: "sub" }, "Why it is there"),
    el("p", {}, prose(row.of.why ?? "not known", 1200)),
    steps.length
      ? el(
          "ol",
          { class: "chain" },
          steps.map((step) =>
            el(
              "li",
              { class: step.is_loss ? "loss" : null },
              step.is_loss ? el("b", {}, "here the sharding changes: ") : null,
              prose(step.what, 400),
              step.place ? el("small", {}, ` ${step.place}`) : null,
              step.arrays.length
                ? el(
                    "div",
                    { class: "mono" },
                    nameOf(step.arrays.join(", "), { most: 300 }),
                    step.becomes ? [" → ", nameOf(step.becomes, { most: 200 })] : null,
                  )
                : null,
            ),
          ),
        )
      : null,
    told?.equations.length
      ? [
          el("h3", { class: "sub" }, "In notation"),
          el(
            "pre",
            { class: "code", tabindex: "0", role: "group", "aria-label": "Notation" },
            told.equations.map((line) => `${clipped(line, 400)}\n`),
          ),
        ]
      : null,
  ];
}

function triedPart(row, told) {
  const advice = (told?.advice ?? []).map((words) => ["not tried", words]);
  const trials = told?.trials.length ? told.trials : row.of.tried ? [["tried", row.of.tried]] : [];
  const items = [];
  for (const [label, words] of [...trials, ...advice]) {
    const shown = prose(words.replaceAll(" -> ", " → "), 800);
    if (label || !items.length)
      items.push(el("li", {}, el("span", { class: label === "tried" ? "badge good" : "badge" }, label), " ", shown));
    else items[items.length - 1].append(el("div", { class: "of-trial" }, shown));
  }
  return items.length ? [el("h3", { class: "sub" }, "What to change"), el("ul", { class: "advice" }, items)] : null;
}

function findingsPart(row) {
  const found = row.side.found.findings
    .map((finding, index) => [finding, index])
    .filter(
      ([finding]) =>
        finding.instruction === row.of.name &&
        (finding.computation === null || finding.computation === row.of.computation),
    );
  return found.length
    ? [
        el("h3", { class: "sub" }, "Findings"),
        el(
          "ul",
          {},
          found.map(([finding, index]) =>
            el(
              "li",
              {},
              el("a", { href: `#finding-${row.side.number}-${index}` }, `${finding.severity}: ${finding.rule}`),
            ),
          ),
        ),
      ]
    : null;
}

function shapesPart(row) {
  const { of } = row;
  const list = (shapes) =>
    shapes.length
      ? shapes.slice(0, 12).map((shape) => el("div", { class: "mono" }, nameOf(shape, { most: 60 })))
      : "none";
  const more = (shapes) => (shapes.length > 12 ? el("small", {}, `and ${shapes.length - 12} more`) : null);
  return [
    el("h3", { class: "sub" }, "Shapes on one device"),
    el(
      "div",
      { class: "shapes" },
      el("div", {}, el("small", {}, "before"), list(of.operand_shapes), more(of.operand_shapes)),
      el("span", { class: "becomes", "aria-hidden": "true" }, "→"),
      el("div", {}, el("small", {}, "after"), list(of.result_shapes), more(of.result_shapes)),
    ),
  ];
}

function factsPart(row) {
  const { side, of, index } = row;
  const path = `analysis.collectives.${index}`;
  const time = side.found.time
    ? [
        ["one execution", figure(side, `${path}.time_us`, "time", { bound: of.bytes_bound })],
        ["of which exposed", figure(side, `${path}.exposed_us`, "time", { bound: of.bytes_bound })],
      ]
    : [];
  const facts = [
    ["payload", figure(side, `${path}.payload_bytes`, "bytes", { bound: of.bytes_bound })],
    ["on the wire", figure(side, `${path}.wire_bytes`, "bytes", { bound: of.bytes_bound })],
    ["times per step", figure(side, `${path}.executions`, "count", { bound: of.executions_bound })],
    ...time,
    ["devices in a group", figure(side, `${path}.group_size`, "count", { unknown: "pairs" })],
    ["origin", of.origin],
    ["loops around it", of.loops.length ? nameOf(of.loops.join(" › ")) : "none"],
    [
      "groups",
      nameOf(JSON.stringify((side.found.device_groups?.[of.groups] ?? []).slice(0, 64)), { most: 120, cls: "mono" }),
    ],
    ["op_name", of.op_name ? nameOf(of.op_name, { most: 140, cls: "mono" }) : "not known"],
  ];
  return [
    el("h3", { class: "sub" }, "Facts"),
    el(
      "dl",
      { class: "facts" },
      facts.map(([label, value]) =>
        el(
          "div",
          { class: ["groups", "op_name"].includes(label) ? "wide" : null },
          el("dt", {}, label),
          el("dd", {}, value),
        ),
      ),
    ),
    partsPart(row),
  ];
}

function partsPart(row) {
  return row.of.parts.length
    ? el(
        "p",
        {},
        "It is made of ",
        row.of.parts.map((part, number) => [
          number ? " + " : "",
          `${part.kind} over ${(part.axes ?? ["?"]).join(",")} (${part.link.toUpperCase()}, `,
          figure(row.side, `analysis.collectives.${row.index}.parts.${number}.wire_bytes`, "bytes", { bound: row.of.bytes_bound }),
          ")",
        ]),
      )
    : null;
}

function sourcePart(row, told) {
  const frames = row.frames.slice(0, 12);
  if (!frames.length) return [el("h3", { class: "sub" }, "Source"), note("Not known: the text names no line for it.")];
  const place = told?.source ?? placeOf(row.frame);
  return [
    el("h3", { class: "sub" }, "Source"),
    excerpt(row.side, place) ?? excerpt(row.side, placeOf(row.frame)),
    el(
      "ol",
      { class: "frames" },
      frames.map((frame) =>
        el(
          "li",
          { class: frame === row.frame ? "own" : null },
          nameOf(placeOf(frame), { most: 80, cls: "mono" }),
          frame.function ? el("small", {}, " in ", nameOf(frame.function, { most: 60 })) : null,
        ),
      ),
    ),
    row.of.source_of ? note(`Taken from %${clipped(row.of.source_of)}, as it has no line of its own.`) : null,
  ];
}
