// Puts the page together.

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  remember(theme);
  redraw();
}

let beforePrint = null;

/** Paper is light, whatever the screen is; a canvas has to be drawn again for it. */
function printing(begins) {
  const root = document.documentElement;
  if (begins) beforePrint = root.dataset.theme ?? null;
  if (begins) root.dataset.theme = "light";
  else if (beforePrint) root.dataset.theme = beforePrint;
  else delete root.dataset.theme;
  redraw();
}

/** Keeps the theme for the next page, where the browser allows that of a file. */
function remember(theme) {
  try {
    localStorage.setItem("hloscope-theme", theme);
  } catch {
    /* it does not */
  }
}

function remembered() {
  try {
    return localStorage.getItem("hloscope-theme");
  } catch {
    return null;
  }
}

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
  const links = new Map(sections.map(([id]) => [id, document.querySelector(`#nav a[href="#${id}"]`)]));
  const watch = new IntersectionObserver(
    (entries) =>
      entries.forEach(
        (entry) =>
          entry.isIntersecting &&
          links.forEach((link, id) => {
            if (id === entry.target.id) link.setAttribute("aria-current", "true");
            else link.removeAttribute("aria-current");
          }),
      ),
    { rootMargin: "-20% 0px -70% 0px" },
  );
  sections.forEach(([id]) => watch.observe(document.getElementById(id)));
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
  const theme = remembered();
  if (THEMES.includes(theme) && theme !== "system") setTheme(theme);
  document
    .getElementById("theme")
    .addEventListener("click", () =>
      setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % 3]),
    );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    document.querySelector("[id^=search-]")?.focus();
  });
  DATA = await unpacked();
  build();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  document
    .getElementById("loading")
    ?.replaceChildren(`The page cannot be shown: ${error.message}. It needs a browser of 2024 or later.`);
  throw error;
});
