"use strict";

// Tables: a heading sorts by its column; a second press turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      headings.forEach((other) => other.setAttribute("aria-sort", "none"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numeric = heading.classList.contains("number");
      const key = (row) => row.cells[column].dataset.value;
      const compare = numeric
        ? (a, b) => Number(key(a)) - Number(key(b))
        : (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      const rows = [...table.tBodies[0].rows].sort(compare);
      table.tBodies[0].append(...(up ? rows : rows.reverse()));
    });
  });
}

// Filters: hide what does not hold the text.
for (const input of document.querySelectorAll("input[data-filters]")) {
  const items = [...document.querySelectorAll(input.dataset.filters)];
  const output = document.querySelector(`output[for="${input.id}"]`);
  input.addEventListener("input", () => {
    const text = input.value.trim().toLowerCase();
    let shown = 0;
    for (const item of items) {
      item.hidden = text !== "" && !item.dataset.text.includes(text);
      shown += item.hidden ? 0 : 1;
    }
    output.textContent = text === "" ? "" : `${shown} of ${items.length}`;
  });
}

// Commands: copy to the clipboard; where that is not allowed, select the text.
for (const button of document.querySelectorAll("button.copy")) {
  const code = button.parentElement.querySelector("code");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

// Printing shows what is folded away.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
