// The drawing of a timeline: a canvas with level of detail, and an overview above it.

const LANE_HEIGHT = 26;
const ROW_HEIGHT = 18;
const LABEL_WIDTH = 104;
const AXIS_HEIGHT = 24;
const OVERVIEW_HEIGHT = 34;

/** One execution of a computation, drawn: `computation`, its `lanes`, and which time of the `whole` is in `view`. */
class TimelineCanvas {
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
    for (const [canvas, height] of [
      [this.canvas, this.height],
      [this.overview, OVERVIEW_HEIGHT],
    ]) {
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
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
      this.drawOverview();
    });
  }

  get scale() {
    return (this.width - LABEL_WIDTH) / (this.view[1] - this.view[0]);
  }
  x(time) {
    return LABEL_WIDTH + (time - this.view[0]) * this.scale;
  }
  time(x) {
    return this.view[0] + (x - LABEL_WIDTH) / this.scale;
  }

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
      if (x > LABEL_WIDTH + 18 && x < this.width - 20)
        pen.fillText(WRITTEN.time(Math.max(0, Number(time.toPrecision(6)))), x, AXIS_HEIGHT / 2);
    }
  }

  drawLane(pen, lane) {
    if (lane.level) return this.drawLevel(pen, lane);
    if (lane.busy) this.drawHeights(pen, lane, lane.busy.row, (index) => lane.busy.parts[index], "busy");
    lane.rows.forEach((row, number) => this.drawRow(pen, row, lane.top + number * lane.row, lane.row - 2));
  }

  /** How much there is, as high as its part of the most in the step. */
  drawLevel(pen, lane) {
    const most = this.liveIn(this.side.timeline.entry);
    this.drawHeights(pen, lane, lane.rows[0], (index) => lane.level[index] / most, "level");
  }

  /** Pieces of a row as high as their parts of a lane; of what is in one pixel, the most. */
  drawHeights(pen, lane, row, partOf, kind) {
    const [right, height] = [Math.ceil(this.width), lane.row * lane.rows.length - 2];
    const heights = new Float32Array(right + 1);
    for (let index = row.from(this.view[0]); index < row.begin.length; index += 1) {
      const left = Math.floor(Math.max(this.x(row.begin[index]), LABEL_WIDTH));
      if (left > right) break;
      const end = Math.min(Math.max(Math.ceil(this.x(row.end[index])), left + 1), right);
      const part = partOf(index) > 0 ? Math.max(height * partOf(index), 1) : 0;
      for (let pixel = left; pixel < end; pixel += 1) if (part > heights[pixel]) heights[pixel] = part;
    }
    pen.fillStyle = this.inks.fill[KINDS.indexOf(kind)];
    for (let begin = LABEL_WIDTH, pixel = begin + 1; pixel <= right; pixel += 1) {
      if (pixel < right && heights[pixel] === heights[begin]) continue;
      if (heights[begin] > 0) pen.fillRect(begin, lane.top + height - heights[begin], pixel - begin, heights[begin]);
      begin = pixel;
    }
  }

  lanesOf(computation) {
    return lanesOf(
      computation,
      (each) => this.liveIn(each),
      (one) => this.busyShares(one),
    );
  }

  /** Of what is folded, the share of its time in which each lane inside it is in use. */
  busyShares(one) {
    const shares = new Map();
    for (const run of one.runs)
      for (const [key, time] of run.times > 0 ? this.busyIn(run.computation) : [])
        shares.set(key, (shares.get(key) ?? 0) + (run.times * time) / (one.end_us - one.begin_us));
    return new Map([...shares].map(([key, part]) => [key, Math.min(part, 1)]));
  }

  busyIn(name) {
    this.busy ??= new Map();
    if (!this.busy.has(name)) {
      this.busy.set(name, new Map());
      const found = this.side.timeline.computations.find((one) => one.name === name);
      this.busy.set(
        name,
        busyTimes(found?.intervals ?? [], (one) => this.busyShares(one)),
      );
    }
    return this.busy.get(name);
  }

  /** Whether something of a kind is drawn, as far as that is not so of every timeline. */
  has(kind) {
    const { timeline } = this.side;
    if (kind === "level") return this.liveIn(timeline.entry) !== null;
    if (kind !== "busy") return true;
    return timeline.computations.some((one) => foldedIn(one.intervals).some((each) => this.busyShares(each).size > 0));
  }

  /** The most that buffers take of HBM in a computation and in what it runs; null where that is not known. */
  liveIn(name) {
    this.live ??= new Map();
    if (!this.live.has(name)) {
      this.live.set(name, null);
      const found = this.side.timeline.computations.find((one) => one.name === name);
      const known = (found?.intervals ?? []).map((one) => liveOf(one, (each) => this.liveIn(each)));
      const most = known.reduce((one, other) => Math.max(one ?? 0, other ?? 0), null);
      this.live.set(name, known.some((bytes) => bytes !== null) ? most : null);
    }
    return this.live.get(name);
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
    pen.fillRect(Math.floor(left), top, 1, height);
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
      this.waited.set(
        name,
        core.reduce((sum, one) => sum + (one.end_us - one.begin_us) * this.waitedShare(one), 0),
      );
    }
    return this.waited.get(name);
  }

  drawName(pen, one, kind, left, width, top, height) {
    pen.font = this.inks.small;
    pen.textAlign = "left";
    const longest = this.longestRun(one);
    const name = (longest ? `↻ ${MARKS[longest.bound]}${longest.times}× ` : "") + intervalName(one).slice(0, 80);
    const most = Math.max(Math.floor((width - 10) / 6.4), 4);
    const text = name.length > most ? `${name.slice(0, most - 1)}…` : name;
    if (this.inks.hatch[kind]) {
      pen.fillStyle = this.inks.card;
      pen.fillRect(left + 3, top + 2, Math.min(pen.measureText(text).width + 5, width - 6), height - 4);
    }
    pen.fillStyle = this.inks.hatch[kind] ? this.inks.ink : this.inks.on[kind];
    pen.fillText(text, left + 5, top + height / 2 + 0.5, width - 8);
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
    shares.forEach(
      (part, pixel) => part > 0 && pen.fillRect(LABEL_WIDTH + pixel, 3 + height * (1 - part), 1, height * part),
    );
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
      for (
        let pixel = Math.floor(one.begin_us / perPixel);
        pixel < pixels && pixel * perPixel < one.end_us;
        pixel += 1
      ) {
        const inside = Math.min(one.end_us, (pixel + 1) * perPixel) - Math.max(one.begin_us, pixel * perPixel);
        shares[pixel] += (part * Math.max(0, inside)) / perPixel;
      }
    }
    return shares;
  }
}

function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= span);
}
