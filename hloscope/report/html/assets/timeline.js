// The timeline: a canvas with level of detail, an overview above it, and what is selected below it.

const LANE_HEIGHT = 26;
const ROW_HEIGHT = 18;
const LABEL_WIDTH = 104;
const AXIS_HEIGHT = 24;
const OVERVIEW_HEIGHT = 34;

class TimelineView {
  constructor(side) {
    this.side = side;
    this.path = [];
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": `keys-${side.number}`,
      "aria-label": `Timeline of ${clipped(side.found.target)}` });
    this.overview = el("canvas", { class: "overview", "aria-hidden": "true" });
    this.crumbs = el("p", { class: "crumbs" });
    this.chosen = el("div", { class: "chosen" });
    this.selected = null;
    this.draws = [];
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement ?? this.canvas);
    this.open(side.timeline.entry, 1);
  }

  /** Shows one execution of a computation. */
  open(name, times) {
    const computation = this.side.timeline.computations.find((one) => one.name === name);
    if (!computation) return;
    const known = this.path.findIndex((step) => step.name === name);
    this.path = known < 0 ? [...this.path, { name, times }] : this.path.slice(0, known + 1);
    this.computation = computation;
    this.index = this.side.timeline.computations.indexOf(computation);
    this.lanes = lanesOf(computation);
    const others = name === this.side.timeline.entry ? sides.map((side) => side.timeline?.step_us ?? 0) : []; // of two programs on one scale
    this.whole = [0, Math.max(computation.time_us, ...others, 1e-9)];
    this.view = [...this.whole];
    this.selected = null;
    this.layout();
    this.crumbs.replaceChildren(...this.breadcrumbs());
    this.describe();
    this.resize();
  }

  breadcrumbs() {
    return this.path.flatMap((step, index) => {
      const words = index === 0 ? `the step` : `${step.name}, ${plural(step.times, "time")}`;
      const last = index === this.path.length - 1;
      const crumb = last ? el("b", {}, nameOf(words, { most: 60 })) : el("button", { type: "button", class: "quiet", onclick: () => this.open(step.name, step.times) }, clipped(words, 60));
      return index ? [" › ", crumb] : [crumb];
    });
  }

  layout() {
    let top = AXIS_HEIGHT;
    for (const lane of this.lanes) {
      lane.top = top + 4;
      lane.row = lane.rows.length > 1 ? ROW_HEIGHT : LANE_HEIGHT;
      top = lane.top + lane.row * lane.rows.length + 4;
    }
    this.height = top + 4;
  }

  resize() {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!width) return;
    this.width = width;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const [canvas, height] of [[this.canvas, this.height], [this.overview, OVERVIEW_HEIGHT]]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.inks = inks();
    this.draw();
    this.drawOverview();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = null; this.draw(); this.drawOverview(); });
  }

  get scale() { return (this.width - LABEL_WIDTH) / (this.view[1] - this.view[0]); }
  x(time) { return LABEL_WIDTH + (time - this.view[0]) * this.scale; }
  time(x) { return this.view[0] + (x - LABEL_WIDTH) / this.scale; }

  /** Draws what is in view; how long that took is kept for benchmarks. */
  draw() {
    const began = performance.now();
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    this.drawAxis(pen);
    for (const lane of this.lanes) this.drawLane(pen, lane);
    this.drawLabels(pen);
    this.draws.push(performance.now() - began);
    if (this.draws.length > 500) this.draws.shift();
  }

  drawAxis(pen) {
    const step = niceStep((this.view[1] - this.view[0]) / Math.max(2, (this.width - LABEL_WIDTH) / 110));
    pen.font = this.inks.small;
    pen.textAlign = "center";
    for (let time = Math.ceil(this.view[0] / step) * step; time <= this.view[1]; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      pen.fillStyle = this.inks.grid;
      pen.fillRect(x, AXIS_HEIGHT - 4, 1, this.height);
      pen.fillStyle = this.inks.soft;
      if (x > LABEL_WIDTH + 18 && x < this.width - 20) pen.fillText(WRITTEN.time(Math.max(0, Number(time.toPrecision(6)))), x, AXIS_HEIGHT / 2);
    }
  }

  drawLane(pen, lane) {
    lane.rows.forEach((row, number) => this.drawRow(pen, row, lane.top + number * lane.row, lane.row - 2));
  }

  /** Intervals of one row. What is narrower than a pixel is drawn with what follows in it, so that a pixel costs one step. */
  drawRow(pen, row, top, height) {
    const right = this.width;
    let index = row.from(this.view[0]);
    while (index < row.begin.length) {
      const left = Math.max(this.x(row.begin[index]), LABEL_WIDTH);
      if (left > right) break;
      const end = Math.min(this.x(row.end[index]), right);
      if (end - left >= 1.5) {
        this.drawInterval(pen, row, index, left, end, top, height);
        index += 1;
      } else {
        this.drawMark(pen, row, index, left, top, height);
        index = Math.max(index + 1, row.from(this.time(left + 1)));
      }
    }
  }

  drawMark(pen, row, index, left, top, height) {
    pen.fillStyle = this.inks.fill[row.kind[index]];
    pen.fillRect(left, top, 1, height);
  }

  drawInterval(pen, row, index, left, end, top, height) {
    const kind = row.kind[index];
    const width = Math.max(end - left - (end - left > 4 ? 1 : 0), 1);
    pen.fillStyle = this.inks.fill[kind];
    pen.fillRect(left, top, width, height);
    if (this.inks.hatch[kind] && width > 3) {
      pen.fillStyle = this.inks.hatch[kind];
      pen.fillRect(left, top, width, height);
    }
    if (KINDS[kind] === "loop") this.drawInsideOfLoop(pen, row.of[index], left, width, top, height);
    if (row.of[index] === this.selected) {
      pen.strokeStyle = this.inks.ink;
      pen.lineWidth = 2;
      pen.strokeRect(left + 1, top + 1, Math.max(width - 2, 1), height - 2);
    }
    if (width > 46) this.drawName(pen, row.of[index], kind, left, width, top, height);
  }

  /** Below a loop's name: which part of it is waited. */
  drawInsideOfLoop(pen, one, left, width, top, height) {
    const waited = width * this.waitedShare(one);
    pen.fillStyle = this.inks.fill[0];
    pen.fillRect(left, top + height - 5, width, 5);
    for (const ink of [this.inks.fill[1], this.inks.hatch[1]]) {
      pen.fillStyle = ink;
      pen.fillRect(left + width - waited, top + height - 5, waited, 5);
    }
  }

  /** The part of an interval in which the core waits: of a loop that of its bodies. */
  waitedShare(one) {
    if (one.wait) return 1;
    const runs = one.runs.filter((run) => run.times > 0);
    const waited = runs.reduce((sum, run) => sum + run.times * this.waitedIn(run.computation), 0);
    return one.end_us > one.begin_us ? Math.min(1, waited / (one.end_us - one.begin_us)) : 0;
  }

  waitedIn(name) {
    this.waited ??= new Map();
    if (!this.waited.has(name)) {
      this.waited.set(name, 0);
      const found = this.side.timeline.computations.find((one) => one.name === name);
      const core = (found?.intervals ?? []).filter((one) => one.unit === "core");
      this.waited.set(name, core.reduce((sum, one) => sum + (one.end_us - one.begin_us) * this.waitedShare(one), 0));
    }
    return this.waited.get(name);
  }

  drawName(pen, one, kind, left, width, top, height) {
    pen.font = this.inks.small;
    pen.textAlign = "left";
    const most = Math.floor((width - 8) / 6.1);
    const longest = this.longestRun(one);
    const loop = longest ? `↻ ${longest.times}× ` : "";
    const text = clipped(loop + intervalName(one).slice(0, 80), Math.max(most, 4)).slice(0, most);
    if (this.inks.hatch[kind]) {
      pen.fillStyle = this.inks.card;
      pen.fillRect(left + 3, top + 2, Math.min(text.length * 6.1 + 4, width - 6), height - 4);
    }
    pen.fillStyle = this.inks.hatch[kind] ? this.inks.ink : this.inks.on[kind];
    pen.fillText(text, left + 5, top + height / 2 + 0.5);
  }

  drawLabels(pen) {
    pen.fillStyle = this.inks.card;
    pen.fillRect(0, 0, LABEL_WIDTH - 1, this.height);
    pen.font = this.inks.bold;
    pen.textAlign = "left";
    pen.fillStyle = this.inks.ink;
    for (const lane of this.lanes) pen.fillText(clipped(lane.label, 14), 2, lane.top + lane.row / 2);
  }

  /** The whole computation, how much of each pixel the core waits in, and what is in view. */
  drawOverview() {
    const pen = this.overview.getContext("2d");
    const [width, height] = [this.width - LABEL_WIDTH, OVERVIEW_HEIGHT - 6];
    pen.clearRect(0, 0, this.width, OVERVIEW_HEIGHT);
    const shares = this.waitShares(Math.max(1, Math.round(width)));
    pen.fillStyle = this.inks.fill[0];
    pen.fillRect(LABEL_WIDTH, 3, (width * this.computation.time_us) / this.whole[1], height);
    pen.fillStyle = this.inks.fill[1];
    shares.forEach((part, pixel) => part > 0 && pen.fillRect(LABEL_WIDTH + pixel, 3 + height * (1 - part), 1, height * part));
    const [from, to] = this.view.map((time) => LABEL_WIDTH + (time / this.whole[1]) * width);
    pen.fillStyle = this.inks.veil;
    pen.fillRect(LABEL_WIDTH, 3, from - LABEL_WIDTH, height);
    pen.fillRect(to, 3, this.width - to, height);
    pen.strokeStyle = this.inks.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(from + 0.75, 2.75, Math.max(to - from - 1.5, 2), height + 0.5);
    pen.font = this.inks.small;
    pen.textBaseline = "middle";
    pen.fillStyle = this.inks.soft;
    pen.fillText("overview", 2, OVERVIEW_HEIGHT / 2);
  }

  /** How much of each pixel of the overview the core waits in; kept until the width is another one. */
  waitShares(pixels) {
    this.shares ??= new WeakMap();
    const known = this.shares.get(this.computation);
    if (known?.length === pixels) return known;
    const shares = new Float64Array(pixels);
    this.shares.set(this.computation, shares);
    const perPixel = this.whole[1] / pixels;
    for (const one of this.computation.intervals) {
      const part = one.unit === "core" ? this.waitedShare(one) : 0;
      if (!part) continue;
      for (let pixel = Math.floor(one.begin_us / perPixel); pixel < pixels && pixel * perPixel < one.end_us; pixel += 1) {
        const inside = Math.min(one.end_us, (pixel + 1) * perPixel) - Math.max(one.begin_us, pixel * perPixel);
        shares[pixel] += (part * Math.max(0, inside)) / perPixel;
      }
    }
    return shares;
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

  fit() { this.moveTo(0, this.whole[1]); }

  /** Brings an interval into view and tells of it. */
  select(one, { zooms = true } = {}) {
    this.selected = one;
    if (one && zooms) {
      const span = Math.min(Math.max((one.end_us - one.begin_us) * 8, (this.view[1] - this.view[0]) * (this.isInView(one) ? 1 : 0)), this.whole[1]);
      if (!this.isInView(one) || (one.end_us - one.begin_us) * this.scale < 6) this.moveTo((one.begin_us + one.end_us) / 2 - span / 2, span);
    }
    this.describe();
    this.soon();
  }

  isInView(one) { return one.begin_us >= this.view[0] && one.end_us <= this.view[1]; }

  /** The computation, and the interval that moves or waits for a collective; goes there. */
  find(computation, name) {
    const wanted = this.side.timeline.computations.find((one) => one.name === computation);
    if (!wanted) return false;
    const isIt = (one) => one.collective === `${computation}/${name}` || (!one.collective && one.name === name);
    const found = wanted.intervals.filter(isIt);
    const one = found.find((each) => each.wait && each.end_us > each.begin_us) ?? found.find((each) => each.end_us > each.begin_us) ?? found[0];
    if (!one) return false;
    this.goTo(wanted, one);
    return true;
  }

  /** All that is waited for in the step, wherever it stands, what takes most of it first. */
  longestWaits() {
    const perStep = ({ within, one }) => within.executions * (one.end_us - one.begin_us);
    return this.side.timeline.computations.flatMap((within) => within.intervals.map((one) => ({ within, one })))
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
      this.open(computation.name, Math.max(computation.executions, computation.executions_beside));
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
    const index = row.from(this.time(x));
    return index < row.of.length && this.x(row.begin[index]) <= x + 2 ? row.of[index] : null;
  }

  // ---- telling

  describe() {
    const one = this.selected;
    if (!one) {
      this.chosen.replaceChildren(note("Select an interval for what it is. A loop is one block; open it to see one execution of its body."));
      return;
    }
    const place = `timeline.computations.${this.index}.intervals.${this.computation.intervals.indexOf(one)}`;
    const row = one.collective ? this.side.byPlace.get(one.collective) : null;
    this.chosen.replaceChildren(
      el("p", {}, el("b", {}, nameOf(intervalName(one))), ` ${intervalWords(one)}: `, el("b", {}, WRITTEN.time(one.end_us - one.begin_us)), ", from ",
        figure(this.side, `${place}.begin_us`, "time"), " to ", figure(this.side, `${place}.end_us`, "time"), one.is_prefetch ? ", begun by the step before" : "", one.rule ? `; priced as ${one.rule}` : ""),
      el("p", { class: "buttons" }, one.runs.filter((run) => run.times > 0).map((run) => el("button", { type: "button", onclick: () => this.open(run.computation, run.times) }, `Open ${clipped(run.computation, 40)}`)),
        row ? el("button", { type: "button", onclick: () => this.side.table.reveal(row) }, "Show the collective") : null,
        one.name ? hloButton(this.side, this.computation.name, one.name) : null));
    say(`${intervalName(one)} ${intervalWords(one)}, ${WRITTEN.time(one.end_us - one.begin_us)}`);
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
    const time = (run) => run.times * (this.side.timeline.computations.find((each) => each.name === run.computation)?.time_us ?? 0);
    return one.runs.filter((run) => run.times > 0).sort((run, other) => time(other) - time(run))[0] ?? null;
  }

  openBody(one) {
    const run = one && this.longestRun(one);
    if (run) this.open(run.computation, run.times);
  }

  onWheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && document.activeElement !== this.canvas) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.width);
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
    if (one) showTip(event, [el("b", {}, nameOf(intervalName(one), { most: 60 })), el("br"), `${WRITTEN.time(one.end_us - one.begin_us)} · ${intervalWords(one)}`]);
    else hideTip();
  }

  onOverview(event) {
    const time = ((event.offsetX - LABEL_WIDTH) / (this.width - LABEL_WIDTH)) * this.whole[1];
    const span = this.view[1] - this.view[0];
    this.moveTo(time - span / 2, span);
  }

  onKey(event) {
    const keys = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), ArrowUp: () => this.step(-1), ArrowDown: () => this.step(1),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.fit(), w: () => this.nextWait(),
      Enter: () => this.openBody(this.selected),
      Escape: () => this.path.length > 1 && this.open(this.path[this.path.length - 2].name, this.path[this.path.length - 2].times),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= span);
}

/** The colours of the style sheet in the theme that is on, as a canvas needs them. */
function inks() {
  const probe = document.body.appendChild(el("span", { class: "probe" }));
  const colour = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const fill = KINDS.map((kind) => colour(kind));
  const made = { fill, on: KINDS.map((kind) => colour(`on-${kind}`)), ink: colour("ink"), soft: colour("soft"), card: colour("card"), grid: colour("line"), veil: colour("veil"),
    small: "11px system-ui, sans-serif", bold: "600 12px system-ui, sans-serif" };
  const dashes = { exposed: 0.9, copies: 0.5, host: 0.5, threads: 0.5, limit: 0.35 };
  made.hatch = KINDS.map((kind) => (dashes[kind] ? hatch(made.card) : null));
  probe.remove();
  return made;
}

let hatches = new Map();

/** Slanted lines in a colour: what marks waiting beside its colour. */
function hatch(colour) {
  if (!hatches.has(colour)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = colour;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1.6;
    for (const by of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(by, 8); pen.lineTo(by + 8, 0); pen.stroke(); }
    hatches.set(colour, pen.createPattern(tile, "repeat"));
  }
  return hatches.get(colour);
}

function showTip(event, content) {
  const tip = document.getElementById("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

const TIMELINE_LEGEND = [["compute", "computes"], ["loop", "a loop, folded"], ["exposed", "waits for a collective (hatched)"], ["copies", "waits for a copy (hatched)"], ["hidden", "a collective's data on its way"], ["moving", "other data on their way"]];

function timelineSection(sides) {
  const parts = sides.map((side) => (side.timeline ? timelineOf(side) : note(side.name ? `${side.name}: ` : "", side.data.no_timeline)));
  return section("timeline", ["Timeline", "Timeline of one step"], ...parts);
}

function timelineOf(side) {
  const view = (side.view = new TimelineView(side));
  const button = (label, run, title) => el("button", { type: "button", class: "quiet", title, onclick: run }, label);
  const holder = el("div", { class: "canvas" }, view.canvas);
  new ResizeObserver(() => view.resize()).observe(holder);
  return el("div", { class: "timeline" }, side.name ? el("h3", { class: "of" }, nameOf(side.name)) : null,
    el("div", { class: "tools" }, view.crumbs, el("span", { class: "buttons" }, button("−", () => view.zoom(1 / 0.6), "Zoom out"), button("+", () => view.zoom(0.6), "Zoom in"),
      button("Whole", () => view.fit(), "Show all of it"), button("Longest wait", () => view.nextWait(), "Go to the longest wait, then to the next one"))),
    el("div", { class: "canvas" }, view.overview), holder,
    el("ul", { class: "legend row" }, TIMELINE_LEGEND.map(([kind, words]) => el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), words))),
    view.chosen,
    el("p", { class: "note", id: `keys-${side.number}` }, "Keys: ← → move, + − zoom, 0 whole, ↑ ↓ next interval, w longest wait, Enter opens a loop, Esc leaves it. Drag to move; click it, then scroll to zoom."),
    unfolding("The longest waits, as a table", () => waitTable(side)));
}

function waitTable(side) {
  const waits = side.timeline.computations.flatMap((computation, index) => computation.intervals.map((one, number) => ({ one, computation, path: `timeline.computations.${index}`, number }))
    .filter(({ one }) => one.wait && one.end_us > one.begin_us));
  waits.sort((a, b) => b.computation.executions * (b.one.end_us - b.one.begin_us) - a.computation.executions * (a.one.end_us - a.one.begin_us));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The longest waits" }, el("table", {}, el("thead", {}, el("tr", {}, ["waited for", "begins", "ends", "times per step", "why"].map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, waits.slice(0, 50).map(({ one, path, number }) => el("tr", {}, el("td", {}, nameOf(intervalName(one))), el("td", {}, figure(side, `${path}.intervals.${number}.begin_us`, "time")),
      el("td", {}, figure(side, `${path}.intervals.${number}.end_us`, "time")), el("td", {}, figure(side, `${path}.executions`, "count")), el("td", {}, intervalWords(one)))))));
}
