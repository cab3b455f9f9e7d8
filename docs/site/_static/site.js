"use strict";
// For site.css: texts wrap unless they are drawings, and on phones the rows of tables that do not fit become lists.
addEventListener("load", () => {
  for (const text of document.querySelectorAll(".bd-article pre")) text.classList.toggle("wraps", !/[\u2500-\u259f]/.test(text.textContent));
  for (const table of document.querySelectorAll(".bd-article table")) {
    table.classList.toggle("stacked", table.offsetWidth > table.parentElement.clientWidth);
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.querySelectorAll("tbody tr")) [...row.cells].forEach((cell, place) => { cell.dataset.head = heads[place] || ""; });
  }
});
