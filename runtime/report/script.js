"use strict";
// What a page does beside being read: rows of a picture light up what they read and what reads them, and open their
// details; a filter fades the rows that lack a text; tables are sorted by the column that is clicked. Without it the
// page shows all the same. An error is left on the page's root, where a test finds it.
window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });

function open_details(id) {
  const details = document.getElementById(id);
  if (!details) return;
  details.open = true;
  details.scrollIntoView({block: "nearest"});
}

function light(picture, number) {
  const lit = new Set([number]);
  for (const path of picture.querySelectorAll("path")) {
    const touches = path.dataset.writer === number || path.dataset.reader === number;
    path.classList.toggle("lit", touches);
    if (touches) { lit.add(path.dataset.writer); lit.add(path.dataset.reader); }
  }
  for (const row of picture.querySelectorAll(".launch")) row.classList.toggle("lit", lit.has(row.dataset.number));
}

function sorted_by(table, column, ascending) {
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    const [p, q] = [parseFloat(x), parseFloat(y)];
    return Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
  };
  const rows = [...table.tBodies[0].rows].sort(compare);
  table.tBodies[0].append(...(ascending ? rows : rows.reverse()));
}

for (const picture of document.querySelectorAll(".picture")) {
  for (const row of picture.querySelectorAll(".launch")) {
    row.addEventListener("mouseenter", () => light(picture, row.dataset.number));
    row.addEventListener("focus", () => light(picture, row.dataset.number));
    row.addEventListener("click", () => open_details(row.hash.slice(1)));
  }
}

for (const filter of document.querySelectorAll("input[type=search]")) {
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    const picture = document.getElementById(filter.dataset.picture);
    for (const row of picture.querySelectorAll(".launch")) {
      row.classList.toggle("faint", !row.textContent.toLowerCase().includes(wanted));
    }
  });
}

for (const table of document.querySelectorAll("table.sorts")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    let ascending = false;
    head.addEventListener("click", () => { ascending = !ascending; sorted_by(table, column, ascending); });
  });
}

window.addEventListener("hashchange", () => open_details(location.hash.slice(1)));
if (location.hash) open_details(location.hash.slice(1));
document.documentElement.dataset.ready = "yes";
