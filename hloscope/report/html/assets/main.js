// Puts the page together.

function redraw() {
  hatches.clear();
  for (const side of sides) side.view?.resize();
}

function heading(title, words) {
  return el(
    "div",
    { class: "title" },
    el("h1", {}, nameOf(title, { most: 110 })),
    el("p", {}, nameOf(words, { most: 200 })),
  );
}

function headingOf(side) {
  const { found } = side;
  const { slice, mesh } = found;
  const place = [
    slice ? `on ${slice.name}${slice.chosen_by === "guess" ? " (guessed)" : ""}` : "on no slice that is known",
    slice ? plural(slice.used_devices, "device") : plural(found.num_partitions, "partition"),
    mesh ? `mesh ${mesh.axis_names.map((name, index) => `${name}=${mesh.axis_sizes[index]}`).join(" ")}` : null,
  ];
  return heading(found.target, place.filter(Boolean).join(" · "));
}

function navigation() {
  document.getElementById("nav").append(...sections.map(([id, title]) => el("a", { href: `#${id}` }, title)));
  watchSections();
}

const SECTIONS = [
  summarySection,
  meshSection,
  timelineSection,
  collectivesSection,
  arraysSection,
  memorySection,
  findingsSection,
  hloSection,
  aboutSection,
];

function build() {
  sides = DATA.sides.map((data, number) => new Side(data, number, DATA.names[number] ?? null));
  const { diff } = DATA;
  const title = diff ? `${diff.old} → ${diff.new}` : sides[0].found.target;
  document.getElementById("target").append(nameOf(title, { most: 60 }));
  const first = diff ? [heading("Before and after", title), differenceSection()] : [headingOf(sides[0])];
  if (diff && sides.length < 2) first.push(note("Of a baseline nothing is known but what it moves."));
  document
    .getElementById("main")
    .replaceChildren(...first, ...(sides.length ? SECTIONS.map((make) => make(sides)) : []));
  const versions = sides[sides.length - 1]?.found.versions ?? {};
  document.getElementById("foot").append(
    Object.entries({ ...versions, hloscope: DATA.version })
      .map(([name, version]) => `${name} ${version}`)
      .join(", "),
    ". Predicted, not measured. Every figure is one of the JSON that --format json writes.",
  );
  navigation();
}

async function start() {
  startShell({ redrawn: redraw });
  DATA = await unpacked();
  build();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch(saidWhyNot);
