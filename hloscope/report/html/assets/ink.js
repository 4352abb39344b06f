// Colours as a canvas needs them, and what is told at the pointer.

/** The colours of the style sheet in the theme that is on, as a canvas needs them. */
function inks() {
  const probe = document.body.appendChild(el("span", { class: "probe" }));
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const fill = KINDS.map((kind) => colour(kind));
  const made = {
    fill,
    on: KINDS.map((kind) => colour(`on-${kind}`)),
    ink: colour("ink"),
    soft: colour("soft"),
    card: colour("card"),
    grid: colour("line"),
    veil: colour("veil"),
    small: "11px system-ui, sans-serif",
    bold: "600 12px system-ui, sans-serif",
  };
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
    for (const by of [-8, 0, 8]) {
      pen.beginPath();
      pen.moveTo(by, 8);
      pen.lineTo(by + 8, 0);
      pen.stroke();
    }
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
