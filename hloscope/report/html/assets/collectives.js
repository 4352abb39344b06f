// The table of collectives: sorted, filtered, grouped, in pages; each row unfolds.

const PAGE_ROWS = 100;
const FEW_ROWS = 40;
/** Rows of a group that are printed. */
const PAPER_ROWS = 25;

const GROUPINGS = {
  none: ["one by one", null],
  module: ["part of the model", (row) => row.module],
  axis: ["mesh axis", (row) => row.axes],
  line: ["line", (row) => row.line],
  kind: ["kind", (row) => row.of.kind],
  phase: ["pass", (row) => row.part.phase ?? "not known"],
};

/** Columns: label, the value to sort by, and the cell. A number sorts downwards first. */
const COLUMNS = [
  { id: "number", label: "#", value: (row) => row.index, cell: (row) => String(row.index + 1) },
  { id: "kind", label: "Collective", value: (row) => row.of.kind, cell: (row) => kindCell(row) },
  { id: "axes", label: "Axes", value: (row) => row.axes, cell: (row) => axisChips(row) },
  { id: "module", label: "Part of the model", value: (row) => row.module, cell: (row) => partCell(row) },
  {
    id: "wire",
    label: "Wire per step",
    isNumber: true,
    value: (row) => row.of.wire_bytes_per_step ?? Infinity,
    cell: (row) =>
      figure(row.side, `analysis.collectives.${row.index}.wire_bytes_per_step`, "bytes", { bound: row.bound }),
  },
  {
    id: "runs",
    label: "Times",
    isNumber: true,
    value: (row) => row.of.executions,
    cell: (row) =>
      figure(row.side, `analysis.collectives.${row.index}.executions`, "count", { bound: row.of.executions_bound }),
  },
  {
    id: "time",
    label: "Time per step",
    isNumber: true,
    isTime: true,
    value: (row) => row.perStep("time_us") ?? -1,
    cell: (row) => perStep(row, "time_us"),
  },
  {
    id: "exposed",
    label: "Exposed",
    isNumber: true,
    isTime: true,
    value: (row) => row.perStep("exposed_us") ?? -1,
    cell: (row) => [perStep(row, "exposed_us"), exposedBar(row.side, [row])],
  },
];

function perStep(row, field) {
  return sumFigure(row.side, "analysis.collectives", [row.index], field, "time", {
    times: "executions",
    bound: row.bound,
  });
}

function kindCell(row) {
  const arrow = shapesShort(row.of);
  return [
    el("span", { class: "kind" }, row.of.kind),
    row.of.link === "ici"
      ? null
      : el("span", { class: "badge" }, row.of.link === "ici+dcn" ? "ICI+DCN" : row.of.link.toUpperCase()),
    row.of.asynchronous ? el("span", { class: "badge", title: "It is printed as a start and a done" }, "async") : null,
    el("small", {}, nameOf(arrow, { most: 46, cls: "mono" })),
  ];
}

function shapesShort(of) {
  const shapes =
    of.kind === "all-gather" ? of.result_shapes : of.operand_shapes.length ? of.operand_shapes : of.result_shapes;
  const more = shapes.length > 2 ? `, +${shapes.length - 2} more` : "";
  return shapes.slice(0, 2).join(", ") + more;
}

function axisChips(row) {
  if (row.of.axes === null) return el("span", { class: "unknown" }, row.axes);
  if (!row.of.axes.length) return "none";
  return row.of.axes.map((axis) =>
    el(
      "span",
      { class: `chip ${axisClass(row.side, axis)}` },
      nameOf(axis + (row.of.axes_guessed ? "?" : ""), { most: 24 }),
    ),
  );
}

function partCell(row) {
  const module = row.part.module ? withLayers(row.part.module, row.part.layers) : null;
  const what = [row.part.role, row.part.phase].filter(Boolean).join(", ");
  return [
    nameOf(module ?? row.place, { most: 44 }),
    el(
      "small",
      {},
      [what, module ? row.place : null]
        .filter(Boolean)
        .map((words, index) => [index ? " · " : "", nameOf(words, { most: 44 })]),
    ),
  ];
}

function exposedBar(side, rows) {
  const exposed = rows.reduce((sum, row) => sum + (row.perStep("exposed_us") ?? 0), 0);
  if (!side.stepUs) return null;
  const bar = el("span", { class: "fill exposed" });
  bar.style.width = `${Math.min(100, (100 * exposed) / side.stepUs)}%`;
  return el("span", { class: "track small", "aria-hidden": "true" }, bar);
}

/** What a button says that shows more rows: of how many, where it does not show all. */
function moreWords(left) {
  const words = `Show ${WRITTEN.count(Math.min(left, PAGE_ROWS))} more`;
  return left > PAGE_ROWS ? `${words} of ${WRITTEN.count(left)}` : words;
}

class CollectiveTable {
  constructor(side) {
    this.side = side;
    this.columns = COLUMNS.filter((column) => !column.isTime || side.found.time);
    this.sort = side.found.time ? "exposed" : "wire";
    this.down = true;
    this.chosen = null;
    this.by = side.rows.length > FEW_ROWS ? "module" : "none";
    this.openGroups = new Set();
    this.openRows = new Set();
    this.shown = PAGE_ROWS;
    this.body = el("tbody", {});
    this.head = el(
      "tr",
      {},
      this.columns.map((column) => this.heading(column)),
    );
    this.count = el("span", { class: "note", role: "status" });
    this.more = el("button", {
      type: "button",
      class: "wide",
      hidden: true,
      onclick: () => this.showMore(this.visible()),
    });
    this.search = el("input", {
      type: "search",
      id: `search-${side.number}`,
      placeholder: "name, kind, axis, line, shape, why…",
      oninput: () => this.onSearch(),
    });
    this.axis = this.chooser("axis", "Axis", ["", ...new Set(side.rows.map((row) => row.axes))], () => this.onSearch());
    this.grouping = this.chooser(
      "group",
      "Group by",
      Object.keys(GROUPINGS),
      () => {
        this.by = this.grouping.value;
        this.openGroups.clear();
        this.shown = PAGE_ROWS;
        this.draw();
      },
      (key) => GROUPINGS[key][0],
    );
    this.grouping.value = this.by;
    this.scope = el("p", { class: "scope", hidden: true });
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    this.draw();
  }

  chooser(id, label, values, change, words = (value) => value || "all") {
    return el(
      "select",
      { id: `${id}-${this.side.number}`, "aria-label": label, onchange: change },
      values.map((value) => el("option", { value }, clipped(words(value), 40))),
    );
  }

  heading(column) {
    const button = el(
      "button",
      { type: "button", onclick: () => this.sortBy(column.id) },
      column.label,
      el("span", { class: "arrow", "aria-hidden": "true" }),
    );
    return el("th", { scope: "col", class: column.isNumber ? "right" : null, "data-column": column.id }, button);
  }

  element() {
    const label = (id, words, input) => el("label", { for: `${id}-${this.side.number}` }, words, " ", input);
    return el(
      "div",
      { class: "table" },
      el(
        "div",
        { class: "tools" },
        label("search", "Filter", this.search),
        label("axis", "Axis", this.axis),
        label("group", "Group by", this.grouping),
        this.count,
      ),
      this.scope,
      scrolling(
        this.side,
        "Table of collectives",
        el(
          "table",
          { class: this.side.found.time ? "timed" : null, onkeydown: (event) => this.onKey(event) },
          el("caption", { class: "unseen" }, "Collectives. A row unfolds with its button."),
          el("thead", {}, this.head),
          this.body,
        ),
      ),
      this.more,
    );
  }

  sortBy(id) {
    const column = this.columns.find((one) => one.id === id);
    this.down = this.sort === id ? !this.down : Boolean(column.isNumber);
    this.sort = id;
    this.draw();
    say(`Sorted by ${column.label}, ${this.down ? "largest" : "smallest"} first`);
  }

  onSearch() {
    this.shown = PAGE_ROWS;
    this.draw();
  }

  /** Shows some rows alone, such as those of one thing to fix. */
  only(indexes, words) {
    this.chosen = indexes && new Set(indexes);
    this.scope.hidden = !indexes;
    this.scope.replaceChildren(
      "Only ",
      el("b", {}, nameOf(words ?? "", { most: 80 })),
      " ",
      el("button", { type: "button", class: "quiet", onclick: () => this.only(null) }, "Show all"),
    );
    this.by = this.grouping.value = indexes && indexes.length <= FEW_ROWS ? "none" : this.by;
    this.onSearch();
    if (indexes) show(this.search);
    else this.search.focus({ preventScroll: true });
  }

  reveal(row) {
    this.chosen = null;
    this.scope.hidden = true;
    this.search.value = this.axis.value = "";
    this.openRows.add(row.index);
    if (this.by !== "none") this.openGroups.add(GROUPINGS[this.by][1](row));
    const place = this.visible().indexOf(row);
    this.shown = Math.max(this.shown, place + 1);
    this.draw();
    const button = this.body.querySelector(`[data-row="${row.index}"] button`);
    if (button) show(button);
  }

  visible() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const axis = this.axis.value;
    const kept = this.side.rows.filter(
      (row) =>
        (!this.chosen || this.chosen.has(row.index)) &&
        (!axis || row.axes === axis) &&
        words.every((word) => row.words.includes(word)),
    );
    const column = this.columns.find((one) => one.id === this.sort);
    return kept.sort((one, other) => this.order(column.value(one), column.value(other)) || one.index - other.index);
  }

  order(one, other) {
    if (one === other) return 0;
    return one < other === this.down ? 1 : -1;
  }

  draw() {
    const rows = this.visible();
    for (const head of this.head.children) {
      const isIt = head.dataset.column === this.sort;
      head.setAttribute("aria-sort", !isIt ? "none" : this.down ? "descending" : "ascending");
    }
    const made = this.by === "none" ? this.drawSome(rows, this.shown) : this.drawGroups(rows);
    this.body.replaceChildren(...made);
    const total = this.side.rows.length;
    this.count.textContent =
      rows.length === total
        ? plural(total, "collective")
        : `${WRITTEN.count(rows.length)} of ${plural(total, "collective")}`;
    const left = this.by === "none" ? rows.length - this.shown : 0;
    this.more.hidden = left <= 0;
    this.more.textContent = moreWords(left);
  }

  /** Shows more rows of a list; the keyboard goes to the first of them. */
  showMore(rows) {
    const next = rows[this.shown];
    this.shown += PAGE_ROWS;
    this.draw();
    this.body.querySelector(`[data-row="${next.index}"] button`).focus({ preventScroll: true });
  }

  drawGroups(rows) {
    const groups = new Map();
    for (const row of rows) {
      const key = GROUPINGS[this.by][1](row);
      (groups.get(key) ?? groups.set(key, []).get(key)).push(row);
    }
    const cost = (members) =>
      (this.side.found.time ? members.reduce((sum, row) => sum + (row.perStep("exposed_us") ?? 0), 0) : 0) ||
      members.reduce((sum, row) => sum + (row.of.wire_bytes_per_step ?? 0), 0) * 1e-12;
    const sorted = [...groups].sort(([, one], [, other]) => cost(other) - cost(one));
    return sorted.flatMap(([key, members]) => this.drawGroup(key, members));
  }

  drawGroup(key, members) {
    return [this.groupRow(key, members), ...(this.isOpen(key) ? this.drawMembers(members) : [])];
  }

  isOpen(key) {
    return this.isOnPaper || this.openGroups.has(key);
  }

  drawMembers(members) {
    const most = this.isOnPaper ? Math.min(this.shown, PAPER_ROWS) : this.shown;
    const shown = this.drawSome(members, most);
    const left = members.length - most;
    if (left <= 0 || this.isOnPaper) return shown;
    const more = el(
      "button",
      { type: "button", class: "wide", onclick: () => this.showMore(members) },
      moreWords(left),
    );
    return [...shown, this.wideRow(more)];
  }

  /** The first rows; paper, on which no more of them can be asked for, says how many there are besides. */
  drawSome(rows, most) {
    const [shown, left] = [this.drawRows(rows.slice(0, most)), rows.length - most];
    if (left <= 0 || !this.isOnPaper) return shown;
    return [...shown, this.wideRow(note(`and ${WRITTEN.count(left)} more, which the page lists`))];
  }

  wideRow(content) {
    return el("tr", {}, el("td", { colspan: String(this.columns.length) }, content));
  }

  groupRow(key, members) {
    const open = this.isOpen(key);
    const name =
      this.by === "module" && members[0].part.module
        ? withLayers(
            members[0].part.module,
            members.flatMap((row) => row.part.layers),
          )
        : key;
    const toggle = () => {
      if (!this.openGroups.delete(key)) this.openGroups.add(key);
      this.redraw(`[data-group="${CSS.escape(key)}"]`, "tr:not(.group)", this.drawGroup(key, members));
    };
    const indexes = members.map((row) => row.index);
    const sums = {
      wire: () =>
        sumFigure(this.side, "analysis.collectives", indexes, "wire_bytes_per_step", "bytes", {
          bound: boundOf(this.side, indexes),
        }),
      runs: () =>
        sumFigure(this.side, "analysis.collectives", indexes, "executions", "count", {
          bound: boundOf(this.side, indexes, (row) => row.of.executions_bound),
        }),
      time: () => this.sumTime(indexes, "time_us"),
      exposed: () => [this.sumTime(indexes, "exposed_us"), exposedBar(this.side, members)],
    };
    const first = el(
      "td",
      { colspan: "4" },
      el(
        "button",
        { type: "button", class: "unfold", "aria-expanded": String(open), onclick: toggle },
        arrow(open),
        nameOf(name, { most: 60 }),
      ),
      el("small", {}, plural(members.length, "collective")),
    );
    return el(
      "tr",
      { class: "group", "data-group": key },
      first,
      this.columns
        .slice(4)
        .map((column) => el("td", { class: "right", "data-column": column.id }, sums[column.id]())),
    );
  }

  sumTime(indexes, field) {
    return sumFigure(this.side, "analysis.collectives", indexes, field, "time", {
      times: "executions",
      needsAll: true,
      bound: boundOf(this.side, indexes),
    });
  }

  drawRows(rows) {
    return rows.flatMap((row) => this.drawRow(row));
  }

  drawRow(row) {
    const open = this.openRows.has(row.index);
    const shown = this.row(row, open);
    if (!open) return [shown];
    const details = el("td", { colspan: String(this.columns.length) }, collectiveDetails(row));
    return [shown, el("tr", { class: "details" }, details)];
  }

  row(row, open) {
    const toggle = () => {
      if (!this.openRows.delete(row.index)) this.openRows.add(row.index);
      this.redraw(`[data-row="${row.index}"]`, "tr.details", this.drawRow(row));
    };
    const cells = this.columns.map((column, place) =>
      el(
        "td",
        { class: column.isNumber ? "right" : null, "data-column": column.id },
        place === 0
          ? el(
              "button",
              {
                type: "button",
                class: "unfold",
                "aria-expanded": String(open),
                "aria-label": `${row.index + 1}, ${row.of.kind}, ${clipped(row.of.name, 60)}`,
                onclick: toggle,
              },
              arrow(open),
              column.cell(row),
            )
          : column.cell(row),
      ),
    );
    return el("tr", { "data-row": String(row.index), class: open ? "open" : null }, cells);
  }

  /** Unfolds all groups for paper, on which nothing can be clicked, and folds them again. */
  print(begins) {
    this.isOnPaper = begins;
    this.draw();
  }

  /** Draws a row again with the rows that belong to it, as far as they match; the rest of a long table stays as it is. */
  redraw(selector, belongs, rows) {
    const old = this.body.querySelector(selector);
    while (old.nextElementSibling?.matches(belongs)) old.nextElementSibling.remove();
    old.replaceWith(...rows);
    rows[0].querySelector("button").focus({ preventScroll: true });
  }

  onKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
    const buttons = [...this.body.querySelectorAll("button.unfold")];
    const next = buttons[buttons.indexOf(document.activeElement) + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function collectivesSection(sides) {
  return section(
    "collectives",
    ["Collectives"],
    ...sides.map((side) => {
      side.table = new CollectiveTable(side);
      if (!side.rows.length) return note(noneOf(side, "There are none", "none was found"));
      return el("div", {}, side.name ? el("h3", {}, nameOf(side.name)) : null, side.table.element());
    }),
  );
}
