// What every page has: its data, the theme, the section that is read, and the keys.

/** The data of the page, unpacked once. */
async function unpacked() {
  const packed = document.getElementById("data");
  const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
  packed.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  remember(theme);
  redrawn();
}

let beforePrint = null;

/** Paper is light, whatever the screen is; a canvas has to be drawn again for it. */
function printing(begins) {
  const root = document.documentElement;
  if (begins) beforePrint = root.dataset.theme ?? null;
  if (begins) root.dataset.theme = "light";
  else if (beforePrint) root.dataset.theme = beforePrint;
  else delete root.dataset.theme;
  printed(begins);
  redrawn();
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

/** What a page draws again where colours change, and what it changes for paper. */
let redrawn = () => {};
let printed = () => {};

/** Marks the link to the section that is read. */
function watchSections() {
  const links = new Map([...document.querySelectorAll("#nav a")].map((link) => [link.hash.slice(1), link]));
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
  links.forEach((_, id) => watch.observe(document.getElementById(id)));
}

function startShell(hooks) {
  redrawn = hooks.redrawn ?? redrawn;
  printed = hooks.printed ?? printed;
  const theme = remembered();
  if (THEMES.includes(theme) && theme !== "system") setTheme(theme);
  document
    .getElementById("theme")
    .addEventListener("click", () =>
      setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % 3]),
    );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redrawn());
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    document.querySelector("[id^=search-]")?.focus();
  });
}

function saidWhyNot(error) {
  document
    .getElementById("loading")
    ?.replaceChildren(`The page cannot be shown: ${error.message}. It needs a browser of 2024 or later.`);
  throw error;
}
