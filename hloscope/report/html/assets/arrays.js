// Arguments, results and large intermediates: a row each, which unfolds to the array cut along its axes.

const ARRAY_LISTS = [
  ["arguments", "Arguments"],
  ["outputs", "Results"],
  ["intermediates", "Largest arrays made on the way"],
];
const ARRAYS_SHOWN = 12;

function arraysSection(sides) {
  return section(
    "arrays",
    ["Arrays"],
    ...sides.map((side) => [
      side.name ? el("h3", {}, nameOf(side.name)) : null,
      ARRAY_LISTS.map(([list, title]) =>
        side.found[list].length ? new ArrayTable(side, list, title).element() : null,
      ),
    ]),
  );
}

class ArrayTable {
  constructor(side, list, title) {
    Object.assign(this, { side, list, title, all: false, opened: new Set() });
    this.arrays = side.found[list].map((of, index) => ({ of, index }));
    this.hasRemarks = this.arrays.some(({ of }) => remarksOf(of).length > 0);
    this.body = el("tbody", {});
    this.search = el("input", {
      type: "search",
      "aria-label": `Filter ${title.toLowerCase()}`,
      placeholder: "filter",
      oninput: () => this.draw(),
    });
    this.more = el("button", {
      type: "button",
      class: "wide",
      onclick: () => {
        this.all = !this.all;
        this.draw();
        if (this.more.hidden) this.search.focus({ preventScroll: true });
      },
    });
  }

  element() {
    const heads = ["name", "whole array", "sharding", "on one device", "bytes on one device"];
    if (this.hasRemarks) heads.push("remarks");
    this.draw();
    return el(
      "div",
      { class: "table" },
      el(
        "div",
        { class: "tools" },
        el(
          "h3",
          {},
          this.title,
          " ",
          el(
            "small",
            {},
            plural(this.arrays.length, "array"),
            ", ",
            sumFigure(this.side, `analysis.${this.list}`, this.used(), "bytes_per_device", "bytes"),
            " on one device",
          ),
        ),
        this.search,
      ),
      scrolling(
        this.side,
        `Table: ${this.title}`,
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              heads.map((head) => el("th", { scope: "col", class: head.startsWith("bytes") ? "right" : null }, head)),
            ),
          ),
          this.body,
        ),
      ),
      this.more,
    );
  }

  used() {
    return this.arrays.filter(({ of }) => of.used !== false).map(({ index }) => index);
  }

  draw() {
    const words = this.search.value.toLowerCase();
    const found = this.arrays.filter(({ of }) => `${of.name} ${of.sharding} ${of.dtype}`.toLowerCase().includes(words));
    const size = ({ of }) => (of.used === false ? -1 : (of.bytes_per_device ?? Infinity));
    const largest = new Set(
      [...found].sort((one, other) => size(other) - size(one)).slice(0, this.all ? 2000 : ARRAYS_SHOWN),
    );
    this.body.replaceChildren(...found.filter((one) => largest.has(one)).flatMap((one) => this.rows(one)));
    const left = found.length - largest.size;
    this.more.hidden = !(left > 0 || this.all);
    this.more.textContent = this.all ? "Show the largest alone" : `Show ${WRITTEN.count(left)} smaller ones too`;
  }

  rows({ of, index }) {
    const open = this.opened.has(index);
    const path = `analysis.${this.list}.${index}`;
    const toggle = () => {
      if (!this.opened.delete(index)) this.opened.add(index);
      this.draw();
      this.body.querySelector(`[data-array="${index}"] button`)?.focus();
    };
    const name = el(
      "button",
      { type: "button", class: "unfold", "aria-expanded": String(open), onclick: toggle },
      arrow(open),
      nameOf(of.name, { most: 48 }),
    );
    const row = el(
      "tr",
      { "data-array": String(index), class: of.used === false ? "unused" : open ? "open" : null },
      el("td", {}, name),
      el("td", { class: "mono" }, shapeText(of.dtype, of.global_shape)),
      el("td", {}, shardingCell(this.side, of)),
      el("td", { class: "mono" }, shapeText(of.dtype, of.local_shape)),
      el(
        "td",
        { class: "right" },
        of.used === false ? "not used" : figure(this.side, `${path}.bytes_per_device`, "bytes"),
      ),
      this.hasRemarks ? el("td", {}, remarksOf(of)) : null,
    );
    return open
      ? [row, el("tr", { class: "details" }, el("td", { colspan: this.hasRemarks ? "6" : "5" }, this.details(of, index, path)))]
      : [row];
  }

  details(of, index, path) {
    const picture = pictureOf(this.side, this.list, index);
    const frame = usersFrame(this.side.stack(of.source));
    return el(
      "div",
      { class: "inside one" },
      picture ?? note("How it is cut is not known: nothing says its sharding in a mesh."),
      this.list === "intermediates"
        ? el(
            "p",
            {},
            "Made by ",
            nameOf(`%${of.name}`),
            of.padded_bytes_per_device !== null
              ? [", ", figure(this.side, `${path}.padded_bytes_per_device`, "bytes"), " with its tiles"]
              : null,
            frame ? `, at ${shortPlace(frame)}` : "",
            " ",
            hloButton(this.side, of.computation, of.name.split("[")[0]),
          )
        : null,
      frame ? excerpt(this.side, placeOf(frame)) : null,
    );
  }
}

function shapeText(dtype, shape) {
  return shape === null || shape === undefined
    ? el("span", { class: "unknown" }, "unknown")
    : nameOf(`${dtype}[${shape.join(",")}]`, { most: 44 });
}

function shardingCell(side, of) {
  if (!of.sharding) return el("span", { class: "unknown" }, of.used === false ? "" : "unknown");
  return [
    nameOf(of.sharding, { most: 60, cls: "mono" }),
    of.chosen_by === "compiler" ? el("span", { class: "badge", title: "It was left open" }, "compiler's choice") : null,
  ];
}

function remarksOf(of) {
  const remarks = [
    of.donated ? "donated" : null,
    of.reused === false ? "its memory is not reused" : null,
    of.memory_space === 5 ? "in host memory" : of.memory_space === 1 ? "in vector memory" : null,
  ];
  return remarks.filter(Boolean).map((words) => el("span", { class: "badge" }, words));
}

/** A picture that hloscope has drawn; its markup is hloscope's own, in which the program's strings are escaped. */
function picture(markup, label) {
  const parsed = new DOMParser().parseFromString(markup, "image/svg+xml");
  if (parsed.querySelector("parsererror")) return null;
  return el(
    "figure",
    { class: "picture", tabindex: "0", role: "group", "aria-label": label },
    document.importNode(parsed.documentElement, true),
  );
}

function pictureOf(side, list, index) {
  const number = side.data.pictures?.[list]?.[index];
  if (number === null || number === undefined) return null;
  const { drawn, names } = side.data.pictures;
  const other = names[number] !== side.found[list][index].name;
  return [
    other ? note("It is cut as ", nameOf(names[number], { most: 60 }), " is:") : null,
    picture(drawn[number], "The array and who holds what"),
  ];
}
