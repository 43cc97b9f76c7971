"use strict";

const one = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const input = one("#picture"), drop = one("#drop"), preview = one("#preview"), dialog = one("#map"), notice = one("#notice");

// --- The picture: chosen, dropped or pasted ---------------------------------------------------------------------------

let shown = "";

function show(address) {
  if (shown) URL.revokeObjectURL(shown);
  shown = address.startsWith("blob:") ? address : "";
  preview.hidden = address === "";
  if (address === "") preview.removeAttribute("src"); else preview.src = address;
  drop.classList.toggle("filled", address !== "");
}

function take(file) {
  if (!file.type.startsWith("image/")) return say("This is no picture.");
  const list = new DataTransfer();
  list.items.add(file);
  input.files = list.files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}

input.addEventListener("change", () => {
  if (input.files.length) show(URL.createObjectURL(input.files[0]));
});
// The same file may be chosen twice, which is no change unless the first one is forgotten.
input.addEventListener("click", () => { input.value = ""; });
preview.addEventListener("error", () => { if (preview.hasAttribute("src")) show(""); });

for (const kind of ["dragenter", "dragover"]) {
  addEventListener(kind, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    drop.classList.add("over");
  });
}
addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
addEventListener("drop", (event) => {
  drop.classList.remove("over");
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  take(event.dataTransfer.files[0]);
});
addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files][0];
  if (file) take(file);
});

// --- Messages ---------------------------------------------------------------------------------------------------------

let fading;

function say(text) {
  notice.textContent = text;
  notice.hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => { notice.hidden = true; }, 6000);
}

const lines = {
  "htmx:sendError": "The service cannot be reached.",
  "htmx:timeout": "The service took too long to answer.",
};
for (const [kind, text] of Object.entries(lines)) {
  document.body.addEventListener(kind, (event) => {
    if (event.detail.target?.id === "map-body") dialog.close();
    say(text);
  });
}
// An error must not take the place of the button that met it.
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr, target } = event.detail;
  if (xhr.status < 400 || !target.classList.contains("mark")) return;
  event.detail.shouldSwap = false;
  const text = document.createElement("template");
  text.innerHTML = xhr.responseText;
  say(text.content.querySelector("p")?.textContent ?? "The mark could not be kept.");
});

// --- Results: one of them is in the tab order, and the arrows move that one -------------------------------------------

function reach(card) {
  for (const other of all(".card")) {
    const on = other === card;
    other.tabIndex = on ? 0 : -1;
    for (const act of other.querySelectorAll(".act")) act.tabIndex = on ? 0 : -1;
  }
}

function arrive() {
  const summary = one(".summary");
  if (summary?.dataset.kind === "id") show(summary.dataset.preview ?? "");
  if (summary?.dataset.kind === "label") show("");
  if (summary && summary.dataset.kind !== "picture") input.value = "";
  reach(one(".card"));
}

// On a phone the results lie below the picture.
const narrow = matchMedia("(max-width: 820px)");
if (narrow.matches) one("#options").open = false;

document.body.addEventListener("focusin", (event) => {
  const card = event.target.closest?.(".card");
  if (card) reach(card);
});
document.body.addEventListener("htmx:afterSwap", (event) => {
  if (event.detail.target.id === "answer") arrive();
  else if (event.detail.elt.closest?.(".card")) reach(event.detail.elt.closest(".card"));
});
// A search made from a result would leave the focus on nothing.
document.body.addEventListener("htmx:afterSettle", (event) => {
  if (event.detail.target.id !== "answer" || document.activeElement.id === "text") return;
  if (document.activeElement === document.body) (one(".card") ?? one("#answer")).focus({ preventScroll: true });
  if (narrow.matches) one("#answer").scrollIntoView({ block: "start" });
  else scrollTo({ top: 0, behavior: "instant" });
});
one("#answer").addEventListener("error", (event) => {
  if (event.target.tagName === "IMG") event.target.closest(".frame")?.classList.add("broken");
}, true);

const columns = () => {
  const cards = all(".card");
  const next = cards.findIndex((card) => card.offsetTop > cards[0].offsetTop);
  return next === -1 ? cards.length : next;
};
const steps = { ArrowRight: () => 1, ArrowLeft: () => -1, ArrowDown: columns, ArrowUp: () => -columns() };

function move(event, card) {
  const cards = all(".card");
  const at = cards.indexOf(card);
  const to = event.key === "Home" ? 0 : event.key === "End" ? cards.length - 1 : at + steps[event.key]();
  if (to < 0 || to >= cards.length) return;
  event.preventDefault();
  cards[to].focus();
}

function act(card, name) {
  const button = card.querySelector(`.${name}`);
  if (button) button.click();
  return Boolean(button);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const typing = event.target.closest?.("input:not([type=file]), select, textarea");
  const card = event.target.closest?.(".card");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    one("#text").select();
    one("#text").focus();
  } else if (event.key === "ArrowDown" && event.target.id === "text" && one(".card")) {
    event.preventDefault();
    one(".card").focus();
  } else if (card && !typing) {
    if (event.key in steps || event.key === "Home" || event.key === "End") move(event, card);
    else if (event.key.toLowerCase() === "x") act(card, "mark");
    else if (event.key.toLowerCase() === "m") act(card, "map");
    else if (event.key === "Enter" && event.target === card) act(card, "similar");
  }
});

// --- Similarity maps --------------------------------------------------------------------------------------------------

document.body.addEventListener("htmx:beforeRequest", (event) => {
  if (event.detail.target.id !== "map-body") return;
  event.detail.target.textContent = "Drawing the map …";
  if (!dialog.open) dialog.showModal();
});
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { one("#map-body").replaceChildren(); });

arrive();
