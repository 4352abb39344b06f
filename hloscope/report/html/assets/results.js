// Pages that are there before their script is: it sorts tables, filters cards, moves with keys and saves the data.

const say = (text) => {
  document.getElementById("live").textContent = text;
};

/** What a cell is sorted by: its figure, else its words; what is unknown comes last. */
function cellValue(cell) {
  const value = cell.querySelector("data")?.value;
  if (value !== undefined) return value === "inf" ? Infinity : Number(value);
  return cell.querySelector(".unknown") ? null : cell.textContent.trim().toLowerCase();
}

function ordered(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (one === other) return 0;
  return one < other === down ? 1 : -1;
}

/** Gives each heading a button that sorts by its column, figures from the largest on. */
function sorting(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (body.rows.length < 2) return;
  heads.forEach((head, place) => {
    if (!head.textContent) return;
    const words = head.textContent;
    const button = document.createElement("button");
    const arrow = document.createElement("span");
    arrow.className = "arrow";
    arrow.ariaHidden = "true";
    button.type = "button";
    button.append(words, arrow);
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const rows = [...body.rows];
      const isFigure = rows.some((row) => row.cells[place].querySelector("data"));
      const now = head.getAttribute("aria-sort");
      const down = now === "none" ? isFigure : now === "ascending";
      const values = new Map(rows.map((row) => [row, cellValue(row.cells[place])]));
      body.append(...rows.sort((one, other) => ordered(values.get(one), values.get(other), down)));
      for (const each of heads) if (each.hasAttribute("aria-sort")) each.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      say(`Sorted by ${words}, ${down ? "largest" : "smallest"} first`);
    });
  });
}

/** Shows the cards of a section that hold all words and are of the kind that is chosen. */
function filtering(tools) {
  const noun = tools.dataset.tools;
  const [search, chooser] = [tools.querySelector("input"), tools.querySelector("select")];
  const status = tools.querySelector("[role=status]");
  const cards = [...tools.parentElement.querySelectorAll("[data-kind]")];
  const texts = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = chooser?.value ?? "";
    let shown = 0;
    for (const card of cards) {
      const isIt = (!kind || card.dataset.kind === kind) && words.every((word) => texts.get(card).includes(word));
      card.hidden = !isIt;
      shown += Number(isIt);
    }
    const all = plural(cards.length, noun);
    status.textContent = shown === cards.length ? all : `${WRITTEN.count(shown)} of ${all}`;
  };
  search.addEventListener("input", apply);
  chooser?.addEventListener("change", apply);
  tools.hidden = false;
  apply();
}

/** From one thing that unfolds to the next with the arrows, as in a list. */
function walking(event) {
  const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
  if (!by || event.ctrlKey || event.altKey || event.metaKey || !event.target.matches?.("summary")) return;
  const all = [...document.querySelectorAll("main summary")].filter((each) => each.checkVisibility());
  const next = all[all.indexOf(event.target) + by];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

/** What a link leads to is unfolded. */
function unfolded() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.matches("details")) target.open = true;
}

/** Paper cannot be unfolded. */
let folded = [];
function forPaper(begins) {
  if (begins) folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = begins;
}

async function saved() {
  const text = JSON.stringify((await data).document, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "hloscope.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

startShell({ printed: forPaper });
document.querySelectorAll("table.sorts").forEach(sorting);
document.querySelectorAll("[data-tools]").forEach(filtering);
document.addEventListener("keydown", walking);
addEventListener("hashchange", unfolded);
watchSections();
const data = unpacked();
const save = document.getElementById("save");
save.hidden = false;
save.addEventListener("click", saved);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
