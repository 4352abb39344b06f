// The HLO around an instruction: its line, what it reads, what reads it, what it calls; each a link.

const MOST_MATCHES = 12;

class HloView {
  constructor(side) {
    this.side = side;
    this.by = new Map();
    for (const computation of side.data.hlo.computations) {
      this.by.set(computation.name, { computation, known: side.instructions.get(computation.name) });
    }
    this.trail = [];
    this.body = el("div", { class: "hlo", tabindex: "-1" });
    this.search = el("input", {
      type: "search",
      id: `instruction-${side.number}`,
      placeholder: "its name, such as all-gather.8",
      oninput: () => this.find(),
    });
    this.matches = el("p", { class: "buttons", role: "status" });
    const first = side.rows[0];
    if (first && this.has(first.of.computation, first.of.name)) this.open(first.of.computation, first.of.name, false);
    else this.body.append(note("Follow an HLO link of this page to see the instruction."));
  }

  element() {
    const label = el("label", { for: this.search.id }, "Instruction ", this.search);
    return el("div", {}, el("div", { class: "tools" }, label, this.matches), this.body);
  }

  /** Instructions whose names hold what is looked for, each a link. */
  find() {
    const words = this.search.value.trim().toLowerCase().replace(/^%/, "");
    const found = [];
    for (const [computation, { known }] of words ? this.by : []) {
      for (const name of known.keys()) if (name.toLowerCase().includes(words)) found.push([computation, name]);
    }
    found.sort(([, one], [, other]) => one.length - other.length);
    const links = found.slice(0, MOST_MATCHES).map(([computation, name]) => this.link(computation, name));
    const more = found.length - links.length;
    this.matches.replaceChildren(
      ...links,
      more > 0 ? `and ${WRITTEN.count(more)} more` : words && !links.length ? "none among those on this page" : "",
    );
  }

  has(computation, name) {
    return Boolean(this.by.get(computation)?.known.has(name));
  }

  open(computation, name, shows = true) {
    const { known, computation: within } = this.by.get(computation);
    const one = known.get(name);
    if (!one) return;
    this.trail = [
      ...this.trail.filter((step) => step.name !== name || step.computation !== computation).slice(-7),
      { computation, name },
    ];
    this.body.replaceChildren(this.crumbs(), this.card(within, one));
    if (shows) show(this.body);
  }

  crumbs() {
    return el(
      "p",
      { class: "crumbs" },
      this.trail.map((step, index) => [
        index ? " › " : "",
        index === this.trail.length - 1
          ? el("b", {}, nameOf(`%${step.name}`, { most: 40 }))
          : el(
              "button",
              { type: "button", class: "quiet", onclick: () => this.open(step.computation, step.name) },
              clipped(`%${step.name}`, 40),
            ),
      ]),
    );
  }

  card(within, one) {
    const row = this.side.byPlace.get(`${within.name}/${one.name}`);
    return el(
      "div",
      {},
      el("p", { class: "mono line" }, this.text(one)),
      el(
        "p",
        { class: "note" },
        `HLO line ${WRITTEN.count(one.line)}, in `,
        nameOf(`%${within.name}`, { most: 60 }),
        `, which has ${plural(within.count, "instruction")}`,
        one.is_root ? "; its root" : "",
      ),
      one.op_name ? el("p", { class: "note" }, "op_name ", nameOf(one.op_name, { most: 300, cls: "mono" })) : null,
      row
        ? el(
            "p",
            {},
            el("button", { type: "button", onclick: () => this.side.table.reveal(row) }, "Show the collective"),
          )
        : null,
      el(
        "div",
        { class: "around" },
        this.list("Operands", within.name, one.operands),
        this.list("Users", within.name, one.users),
      ),
      one.called.map((name) => this.bodyOf(name)),
    );
  }

  text(one) {
    const inside = one.operands.length
      ? one.operands.map((name, index) => [index ? ", " : "", nameOf(`%${name}`, { most: 50 })])
      : nameOf(one.argument, { most: 160 });
    return [
      el("b", {}, nameOf(`%${one.name}`, { most: 120 })),
      " = ",
      nameOf(one.shape, { most: 160, cls: "shape" }),
      " ",
      el("b", { class: "opcode" }, nameOf(one.opcode, { most: 60 })),
      "(",
      inside,
      ")",
      one.attributes ? el("span", { class: "attributes" }, ", ", nameOf(one.attributes, { most: 900 })) : null,
    ];
  }

  list(title, computation, names) {
    const known = this.by.get(computation).known;
    const lines = names.map((name) => {
      const one = known.get(name);
      return el(
        "li",
        {},
        this.link(computation, name),
        one ? el("small", { class: "mono" }, " ", one.opcode, " ", nameOf(one.shape, { most: 48 })) : null,
      );
    });
    return el(
      "div",
      {},
      el("h3", { class: "sub" }, `${title} (${names.length})`),
      lines.length ? el("ul", { class: "mono" }, lines) : note("none"),
    );
  }

  link(computation, name) {
    const label = nameOf(`%${name}`, { most: 60 });
    return this.has(computation, name)
      ? el("button", { type: "button", class: "link", onclick: () => this.open(computation, name) }, label)
      : label;
  }

  bodyOf(name) {
    const found = this.by.get(name);
    if (!found)
      return el(
        "p",
        {},
        "calls ",
        nameOf(`%${name}`, { cls: "mono" }),
        " ",
        el("small", {}, "(not among what this page holds)"),
      );
    const lines = [...found.known.values()];
    return unfolding(`calls %${clipped(name, 60)}, ${plural(found.computation.count, "instruction")}`, () =>
      el(
        "ol",
        { class: "mono body" },
        lines.map((one) =>
          el(
            "li",
            {},
            this.link(name, one.name),
            " = ",
            nameOf(one.shape, { most: 60 }),
            " ",
            el("b", {}, one.opcode),
            "(",
            clipped(one.operands.map((operand) => `%${operand}`).join(", "), 120),
            ")",
          ),
        ),
      ),
    );
  }
}

function hloButton(side, computation, name) {
  if (!side.instructions.get(computation)?.has(name)) return null;
  const open = () => side.hloView.open(computation, name);
  return el("button", { type: "button", class: "quiet", onclick: open }, "HLO around it");
}

function hloSection(sides) {
  return section(
    "hlo",
    ["HLO", "HLO around an instruction"],
    ...sides.map((side) => {
      if (!side.data.hlo) return note(side.name ? `${side.name}: ` : "", sentence(side, side.data.no_hlo));
      side.hloView = new HloView(side);
      return [side.name ? el("h3", {}, nameOf(side.name)) : null, side.hloView.element()];
    }),
  );
}
