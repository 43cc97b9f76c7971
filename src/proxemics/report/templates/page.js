
// Light and dark: what the system prefers, until somebody chooses.
const themes = ["light", "dark"], root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
function setTheme(name) {
  if (themes.includes(name)) root.dataset.theme = name;
  for (const button of document.querySelectorAll("button.theme")) button.setAttribute("aria-pressed", String(isDark()));
  dispatchEvent(new Event("themechange"));
}
const remembered = (name) => {
  try { // a file opened from disk may not be allowed to remember
    if (name) localStorage.setItem("proxemics-theme", name);
    return localStorage.getItem("proxemics-theme");
  } catch { return null; }
};
const turnTheme = () => { setTheme(isDark() ? "light" : "dark"); remembered(root.dataset.theme); };
setTheme(remembered());
system.addEventListener("change", () => setTheme());
for (const button of document.querySelectorAll("button.theme")) button.addEventListener("click", turnTheme);

// Keys: j and k go from section to section, / to the search box at hand, t turns the theme, ? shows the keys.
const sections = [...document.querySelectorAll("main > section")];
function current() {
  const line = Math.min(innerHeight / 3, 240);
  return Math.max(0, sections.findLastIndex((section) => section.getBoundingClientRect().top <= line));
}
function goTo(number) {
  const section = sections[Math.min(Math.max(number, 0), sections.length - 1)];
  section.tabIndex = -1;
  section.focus({ preventScroll: true });
  section.scrollIntoView({ block: "start" });
}
function searchAt() {
  const inputs = [...document.querySelectorAll("input[type=search]")], here = sections[current()];
  const input = inputs.find((one) => here?.contains(one)) ?? inputs.find((one) => here && here.compareDocumentPosition(one) & 4) ?? inputs[0];
  if (input) { input.focus(); input.select(); input.scrollIntoView({ block: "nearest" }); }
}
const keys = document.querySelector("dialog.keys");
const turnKeys = () => (keys.open ? keys.close() : keys.showModal());
for (const button of document.querySelectorAll("button.help")) button.addEventListener("click", turnKeys);
const bindings = { j: () => goTo(current() + 1), k: () => goTo(current() - 1), "/": searchAt, t: turnTheme, "?": turnKeys };
addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (typing && event.key === "Escape") event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in bindings) || (keys.open && event.key !== "?")) return;
  event.preventDefault();
  bindings[event.key]();
});

// A link to something folded away unfolds it.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const details = target && target.closest("details");
  if (details) { details.open = true; target.scrollIntoView({ block: "start" }); }
}
addEventListener("hashchange", unfold);
for (const link of document.querySelectorAll("a[href^='#']")) link.addEventListener("click", () => setTimeout(unfold));
unfold();
