// The timeline: what can be done with it, and what is told of what is selected.

class TimelineView extends TimelineCanvas {
  constructor(side) {
    super();
    this.side = side;
    this.path = [];
    this.canvas = el("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "timeline",
      "aria-describedby": `keys-${side.number}`,
      "aria-label": `Timeline of ${clipped(side.found.target)}`,
    });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.crumbs = el("p", { class: "crumbs" });
    this.chosen = el("div", { class: "chosen" });
    this.selected = null;
    this.draws = [];
    this.canvas.timeline = this; // for benchmarks
    this.listen();
    this.open(side.timeline.entry, 1);
  }

  /** Shows one execution of a computation. */
  open(name, times, bound = "exact") {
    const computation = this.side.timeline.computations.find((one) => one.name === name);
    if (!computation) return;
    const known = this.path.findIndex((step) => step.name === name);
    this.path = known < 0 ? [...this.path, { name, times, bound }] : this.path.slice(0, known + 1);
    this.computation = computation;
    this.index = this.side.timeline.computations.indexOf(computation);
    this.lanes = this.lanesOf(computation);
    const others = name === this.side.timeline.entry ? sides.map((side) => side.timeline?.step_us ?? 0) : []; // of two programs on one scale
    this.whole = [0, Math.max(computation.time_us, ...others, 1e-9)];
    this.view = [...this.whole];
    this.selected = null;
    this.layout();
    this.crumbs.replaceChildren(...this.breadcrumbs());
    this.describe();
    this.resize();
  }

  /** Opens a computation from a button, which is gone then: the keyboard goes to the canvas. */
  enter({ name, times, bound }) {
    this.open(name, times, bound);
    this.canvas.focus({ preventScroll: true });
  }

  breadcrumbs() {
    return this.path.flatMap((step, index) => {
      const words = index === 0 ? `the step` : `${step.name}, ${MARKS[step.bound]}${plural(step.times, "time")}`;
      const last = index === this.path.length - 1;
      const crumb = last
        ? el("b", {}, nameOf(words, { most: 60 }))
        : el(
            "button",
            { type: "button", class: "quiet", onclick: () => this.enter(step) },
            clipped(words, 60),
          );
      return index ? [" › ", crumb] : [crumb];
    });
  }

  // ---- moving

  zoom(factor, x = LABEL_WIDTH + (this.width - LABEL_WIDTH) / 2) {
    const middle = this.time(Math.max(x, LABEL_WIDTH));
    const span = Math.min(Math.max((this.view[1] - this.view[0]) * factor, this.whole[1] * 1e-7), this.whole[1]);
    const part = (middle - this.view[0]) / (this.view[1] - this.view[0]);
    this.moveTo(middle - part * span, span);
  }

  moveTo(from, span) {
    const begin = Math.min(Math.max(from, 0), Math.max(this.whole[1] - span, 0));
    this.view = [begin, begin + span];
    this.soon();
  }

  pan(part) {
    const span = this.view[1] - this.view[0];
    this.moveTo(this.view[0] + part * span, span);
  }

  fit() {
    this.moveTo(0, this.whole[1]);
  }

  /** Brings an interval into view and tells of it. */
  select(one, { zooms = true } = {}) {
    this.selected = one;
    if (one && zooms) {
      const span = Math.min(
        Math.max((one.end_us - one.begin_us) * 8, (this.view[1] - this.view[0]) * (this.isInView(one) ? 1 : 0)),
        this.whole[1],
      );
      if (!this.isInView(one) || (one.end_us - one.begin_us) * this.scale < 6)
        this.moveTo((one.begin_us + one.end_us) / 2 - span / 2, span);
    }
    this.describe();
    this.soon();
  }

  isInView(one) {
    return one.begin_us >= this.view[0] && one.end_us <= this.view[1];
  }

  /** The computation, and the interval that moves or waits for a collective; goes there. */
  find(computation, name) {
    const wanted = this.side.timeline.computations.find((one) => one.name === computation);
    if (!wanted) return false;
    const isIt = (one) => one.collective === `${computation}/${name}` || (!one.collective && one.name === name);
    const found = wanted.intervals.filter(isIt);
    const one =
      found.find((each) => each.wait && each.end_us > each.begin_us) ??
      found.find((each) => each.end_us > each.begin_us) ??
      found[0];
    if (!one) return false;
    this.goTo(wanted, one);
    return true;
  }

  /** All that is waited for in the step, wherever it stands, what takes most of it first. */
  longestWaits() {
    const perStep = ({ within, one }) => within.executions * (one.end_us - one.begin_us);
    return this.side.timeline.computations
      .flatMap((within) => within.intervals.map((one) => ({ within, one })))
      .filter((wait) => wait.one.wait && perStep(wait) > 0)
      .sort((wait, other) => perStep(other) - perStep(wait));
  }

  nextWait() {
    this.waits ??= this.longestWaits();
    if (!this.waits.length) return say("Nothing is waited for.");
    const place = this.waits.findIndex((wait) => wait.one === this.selected);
    const { within, one } = this.waits[(place + 1) % this.waits.length];
    this.goTo(within, one);
  }

  goTo(computation, one) {
    if (this.computation !== computation) {
      this.path = this.path.slice(0, 1);
      const times = Math.max(computation.executions, computation.executions_beside);
      this.open(computation.name, times, computation.executions_bound);
    }
    this.select(one);
  }

  /** The next or the one before, along the lane of what is selected. */
  step(by) {
    const row = this.rowOf(this.selected) ?? this.lanes[0]?.rows[0];
    if (!row) return;
    const index = this.selected ? row.of.indexOf(this.selected) + by : row.from(this.view[0]);
    if (row.of[index]) this.select(row.of[index]);
  }

  rowOf(one) {
    return one && this.lanes.flatMap((lane) => lane.rows).find((row) => row.of.includes(one));
  }

  hit(x, y) {
    const lane = this.lanes.find((each) => y >= each.top && y < each.top + each.row * each.rows.length);
    const row = lane?.rows[Math.floor((y - lane.top) / lane.row)];
    if (!row || x < LABEL_WIDTH) return null;
    return this.at(row, x) ?? (lane.busy && this.at(lane.busy.row, x));
  }

  at(row, x) {
    const index = row.from(this.time(x));
    return index < row.of.length && this.x(row.begin[index]) <= x + 2 ? row.of[index] : null;
  }

  // ---- telling

  /** What can be done where nothing is selected; a loop that is most of it can be opened at once. */
  hints() {
    const words = el(
      "p",
      { class: "note on-screen" },
      "Select an interval for what it is. A loop is one block; open it to see one execution of its body.",
    );
    const loop = this.computation.intervals.find(
      (one) => one.runs.length && one.end_us - one.begin_us > this.computation.time_us / 2,
    );
    const run = loop && this.longestRun(loop);
    if (!run) return [words];
    const label = `Open ${clipped(intervalName(loop), 40)}, ${share((loop.end_us - loop.begin_us) / this.computation.time_us)} of it`;
    return [words, el("button", { type: "button", onclick: () => this.enter(asStep(run)) }, label)];
  }

  describe() {
    const one = this.selected;
    if (!one) {
      this.chosen.replaceChildren(...this.hints());
      return;
    }
    const place = `timeline.computations.${this.index}.intervals.${this.computation.intervals.indexOf(one)}`;
    const row = one.collective ? this.side.byPlace.get(one.collective) : null;
    this.chosen.replaceChildren(
      el(
        "p",
        {},
        el("b", {}, nameOf(intervalName(one))),
        ` ${intervalWords(one)}: `,
        el("b", {}, intervalTime(one)),
        ", from ",
        figure(this.side, `${place}.begin_us`, "time"),
        " to ",
        figure(this.side, `${place}.end_us`, "time"),
        one.is_prefetch ? ", begun by the step before" : "",
        one.moved_bytes ? [", ", figure(this.side, `${place}.moved_bytes`, "bytes", { bound: bytesBound(one) })] : "",
        one.flops ? [", ", figure(this.side, `${place}.flops`, "flops")] : "",
        one.live_bytes === null ? "" : [", ", figure(this.side, `${place}.live_bytes`, "bytes"), " of HBM in use"],
        one.rule ? `; priced as ${one.rule}` : "",
      ),
      el(
        "p",
        { class: "buttons" },
        one.runs
          .filter((run) => run.times > 0)
          .map((run) =>
            el(
              "button",
              { type: "button", onclick: () => this.enter(asStep(run)) },
              `Open ${clipped(run.computation, 40)}`,
            ),
          ),
        row
          ? el("button", { type: "button", onclick: () => this.side.table.reveal(row) }, "Show the collective")
          : null,
        one.name ? hloButton(this.side, this.computation.name, one.name) : null,
      ),
    );
    say(`${intervalName(one)} ${intervalWords(one)}, ${intervalTime(one)}`);
  }

  // ---- listening

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointerleave", () => hideTip());
    canvas.addEventListener("dblclick", (event) => this.openBody(this.hit(event.offsetX, event.offsetY)));
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    this.overview.addEventListener("pointerdown", (event) => this.onOverview(event));
    this.overview.addEventListener("pointermove", (event) => event.buttons && this.onOverview(event));
  }

  /** Of what an interval runs what takes longest: of a loop its body. */
  longestRun(one) {
    const time = (run) =>
      run.times * (this.side.timeline.computations.find((each) => each.name === run.computation)?.time_us ?? 0);
    return one.runs.filter((run) => run.times > 0).sort((run, other) => time(other) - time(run))[0] ?? null;
  }

  openBody(one) {
    const run = one && this.longestRun(one);
    if (run) this.open(run.computation, run.times, run.bound);
  }

  onWheel(event) {
    if (
      !event.ctrlKey &&
      !event.metaKey &&
      !event.shiftKey &&
      Math.abs(event.deltaX) <= Math.abs(event.deltaY) &&
      document.activeElement !== this.canvas
    )
      return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      this.pan((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(event.deltaY * 0.0022), event.offsetX);
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, view: [...this.view], moved: false };
  }

  onMove(event) {
    if (!this.drag) return this.onHover(event);
    const by = event.offsetX - this.drag.x;
    if (Math.abs(by) > 3) this.drag.moved = true;
    if (this.drag.moved) this.moveTo(this.drag.view[0] - by / this.scale, this.drag.view[1] - this.drag.view[0]);
  }

  onUp(event) {
    if (this.drag && !this.drag.moved) this.select(this.hit(event.offsetX, event.offsetY), { zooms: false });
    this.drag = null;
  }

  onHover(event) {
    const one = this.hit(event.offsetX, event.offsetY);
    this.canvas.style.cursor = one ? "pointer" : "grab";
    if (one)
      showTip(event, [
        el("b", {}, nameOf(intervalName(one), { most: 60 })),
        el("br"),
        `${intervalTime(one)} · ${intervalWords(one)}`,
      ]);
    else hideTip();
  }

  onOverview(event) {
    const time = ((event.offsetX - LABEL_WIDTH) / (this.width - LABEL_WIDTH)) * this.whole[1];
    const span = this.view[1] - this.view[0];
    this.moveTo(time - span / 2, span);
  }

  onKey(event) {
    const keys = {
      ArrowLeft: () => this.pan(-0.2),
      ArrowRight: () => this.pan(0.2),
      ArrowUp: () => this.step(-1),
      ArrowDown: () => this.step(1),
      "+": () => this.zoom(0.6),
      "=": () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6),
      0: () => this.fit(),
      w: () => this.nextWait(),
      Enter: () => this.openBody(this.selected),
      Escape: () => {
        const step = this.path[this.path.length - 2];
        if (step) this.open(step.name, step.times, step.bound);
      },
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

/** What an interval runs, as a step of the path to it. */
function asStep(run) {
  return { name: run.computation, times: run.times, bound: run.bound };
}

const TIMELINE_LEGEND = [
  ["compute", "computes"],
  ["loop", "a loop, folded"],
  ["exposed", "waits for a collective (hatched)"],
  ["copies", "waits for a copy (hatched)"],
  ["hidden", "a hidden collective"],
  ["moving", "other transfers"],
  ["busy", "in use inside a folded loop (height: share of its time)"],
  ["level", "HBM in use, without code (full height: the maximum)"],
];

function timelineSection(sides) {
  const parts = sides.map((side) =>
    side.timeline ? timelineOf(side) : note(side.name ? `${side.name}: ` : "", sentence(side, side.data.no_timeline)),
  );
  return section("timeline", ["Timeline", "Timeline of one step"], ...parts);
}

function timelineOf(side) {
  const view = (side.view = new TimelineView(side));
  const button = (label, run, title) => el("button", { type: "button", class: "quiet", title, onclick: run }, label);
  const holder = el("div", { class: "canvas" }, view.canvas);
  new ResizeObserver(() => view.resize()).observe(holder);
  return el(
    "div",
    { class: "timeline" },
    side.name ? el("h3", { class: "of" }, nameOf(side.name)) : null,
    el(
      "div",
      { class: "tools" },
      view.crumbs,
      el(
        "span",
        { class: "buttons" },
        button("−", () => view.zoom(1 / 0.6), "Zoom out"),
        button("+", () => view.zoom(0.6), "Zoom in"),
        button("Whole", () => view.fit(), "Show all of it"),
        button("Longest wait", () => view.nextWait(), "Go to the longest wait, then to the next one"),
      ),
    ),
    el("div", { class: "canvas" }, view.overview),
    holder,
    el(
      "ul",
      { class: "legend row" },
      TIMELINE_LEGEND.filter(([kind]) => view.has(kind)).map(([kind, words]) =>
        el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), words),
      ),
    ),
    view.chosen,
    el(
      "p",
      { class: "note on-screen", id: `keys-${side.number}` },
      "Keys: ← → move, + − zoom, 0 whole, ↑ ↓ next interval, w longest wait, Enter opens a loop, Esc leaves it. Drag to move; click it, then scroll to zoom.",
    ),
    unfolding("The longest waits, as a table", () => waitTable(side)),
  );
}

const MOST_WAITS = 50;

function waitTable(side) {
  const { computations } = side.timeline;
  const rows = side.view
    .longestWaits()
    .slice(0, MOST_WAITS)
    .map(({ within, one }) => {
      const path = `timeline.computations.${computations.indexOf(within)}`;
      const place = `${path}.intervals.${within.intervals.indexOf(one)}`;
      return [
        nameOf(intervalName(one)),
        figure(side, `${place}.begin_us`, "time"),
        figure(side, `${place}.end_us`, "time"),
        figure(side, `${path}.executions`, "count", { bound: within.executions_bound }),
        el("span", {}, MARKS[addBounds(within.executions_bound, one.bound)], WRITTEN.time(within.executions * (one.end_us - one.begin_us))),
        intervalWords(one),
      ];
    });
  return tableOf(side, "The longest waits", ["waited for", ">begins", ">ends", ">times per step", ">per step", "why"], rows);
}
