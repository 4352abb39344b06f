// Elements: made by hand, always from text. No string of the program is ever read as markup.

/** An element; attributes by name, listeners as `on…` functions, children as elements or text. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A name of the program: on its own writing direction, cut in the middle where it is long, whole in its title. */
function nameOf(text, { most = 96, tag = "bdi", cls = "name" } = {}) {
  const shown = clipped(text, most);
  return el(tag, { class: cls, title: shown === text ? null : text.slice(0, 2000) }, shown);
}

/** Text that is broken after its commas where it is too long for a line. */
function afterCommas(text) {
  return text.split(/(?<=,)/).map((part, index) => [index ? el("wbr") : null, part]);
}

/** Sentences of hloscope, in which names of the program stand in backticks. */
function prose(text, most = 1500) {
  const parts = clipped(text, most).split("`");
  return el(
    "bdi",
    { class: "name" },
    parts.map((part, index) =>
      index % 2 && index < parts.length - 1 ? el("code", {}, part) : index % 2 ? `\`${part}` : part,
    ),
  );
}

/** A path that says of which program it is. */
function prefixed(side, path) {
  return side.number === "" ? path : `${side.number}.${path}`;
}

/** What each program has, side by side where there are two. */
function pair(sides, make) {
  if (sides.length === 1 && !sides[0].name) return make(sides[0]);
  return el(
    "div",
    { class: "pair" },
    sides.map((side) =>
      el(
        "div",
        { class: "side" },
        el("h3", { class: "of" }, side.name, " ", el("small", {}, nameOf(side.found.target, { most: 60 }))),
        make(side),
      ),
    ),
  );
}

/** A quantity of the document, which stands there at this path: its exact value beside what is read. */
function figure(side, path, unit, { bound = "exact", unknown = "unknown" } = {}) {
  const value = at(side.data, path);
  if (value === null || value === undefined) return el("span", { class: "unknown" }, unknown);
  return el(
    "data",
    { value: String(value), "data-of": prefixed(side, path), "data-unit": unit },
    MARKS[bound] + written(value, unit),
  );
}

/** A sum over rows of a list of the document, each times another field of it where one is named. */
function sumFigure(side, list, indexes, field, unit, { times = null, bound = "exact", needsAll = false } = {}) {
  const rows = at(side.data, list);
  const known = indexes.filter((index) => rows[index][field] !== null && rows[index][field] !== undefined);
  if (!known.length && indexes.length) return el("span", { class: "unknown" }, "unknown");
  if (needsAll && known.length < indexes.length) return el("span", { class: "unknown" }, "unknown");
  const value = known.reduce((sum, index) => sum + rows[index][field] * (times ? rows[index][times] : 1), 0);
  const floor = known.length < indexes.length ? addBounds(bound, "at least") : bound;
  const attributes = {
    value: String(value),
    "data-sum": prefixed(side, list),
    "data-field": field,
    "data-unit": unit,
    "data-rows": indexes.length === rows.length ? "all" : indexes.join(" "),
    "data-times": times,
  };
  return el("data", attributes, MARKS[floor] + written(value, unit));
}

/** One value of the document as a share of another. */
function shareFigure(side, part, whole) {
  const [value, all] = [at(side.data, part), at(side.data, whole)];
  if (value === null || value === undefined || !all) return null;
  const of = `${prefixed(side, part)} ${prefixed(side, whole)}`;
  return el("data", { value: String(value / all), "data-share": of, "data-unit": "share" }, share(value / all));
}

let sections = [];

/** A section of the page with its heading; the navigation has the short one. */
function section(id, [short, title], ...children) {
  const heading = el("h2", { id: `${id}-title` }, title ?? short);
  sections.push([id, short]);
  return el("section", { id, class: "card", "aria-labelledby": `${id}-title` }, heading, ...children);
}

/** What a button that unfolds something begins with. */
function arrow(open) {
  return el("span", { "aria-hidden": "true" }, open ? "▾" : "▸");
}

/** A table that is moved sideways by itself where it is wide; also with keys. */
function scrolling(side, label, table) {
  const whole = side.name ? `${label}, ${side.name}` : label;
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": whole }, table);
}

/** A table of rows, which are lists of cells; of a head such as `>bytes` the column is aligned to the right. */
function tableOf(side, label, heads, rows, cls = null) {
  const right = heads.map((head) => (head.startsWith(">") ? "right" : null));
  const head = heads.map((text, index) => el("th", { scope: "col", class: right[index] }, text.replace(/^>/, "")));
  const body = rows.map((cells) =>
    el(
      "tr",
      {},
      cells.map((cell, index) =>
        cell instanceof HTMLTableCellElement ? cell : el("td", { class: right[index] }, cell),
      ),
    ),
  );
  return scrolling(
    side,
    label,
    el("table", { class: cls }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)),
  );
}

/** What there is of some parts, with dots between them. */
function separated(parts) {
  return parts.filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part]));
}

/** Words of a message as a sentence; one that begins with the name of a program begins with that as it is. */
function sentence(side, text) {
  const isName = text.startsWith(side.found.target);
  const first = isName ? text.charAt(0) : text.charAt(0).toUpperCase();
  return `${first}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function note(...children) {
  return el("p", { class: "note" }, ...children);
}

/** That there is none of something, unless not everything of the program was understood. */
function noneOf(side, known, found) {
  const isWhole = side.found.totals.bound === "exact";
  return isWhole ? `${known}.` : `Not everything was understood: ${found}, and there may be more.`;
}

function say(text) {
  document.getElementById("live").textContent = text;
}

/** A part of the page that is unfolded by a button; its content is made when it is first asked for. */
function unfolding(label, make, { open = false } = {}) {
  const details = el("details", {}, el("summary", {}, label));
  const fill = () => details.childElementCount === 1 && details.append(make());
  details.addEventListener("toggle", () => details.open && fill());
  details.fill = fill;
  if (open) {
    details.open = true;
    fill();
  }
  return details;
}

/** Brings something into view and makes it what the keyboard is at. */
function show(element) {
  element.scrollIntoView({
    block: "center",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
  element.focus({ preventScroll: true });
}

/** Lines of the user's code around a place, where the page has them. */
function excerpt(side, place) {
  const lines = side.data.lines?.[place];
  if (!lines) return null;
  const line = Number(place.split(":").pop());
  return el(
    "pre",
    { class: "code", tabindex: "0", role: "group", "aria-label": `Source around ${place}` },
    lines.map(([number, text]) =>
      el(
        "span",
        { class: number === line ? "here" : null },
        el("i", {}, `${number === line ? "▸" : " "}${String(number).padStart(5)} `),
        `${clipped(text, 400)}\n`,
      ),
    ),
  );
}
