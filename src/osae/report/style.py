"""The style sheet and the script of the page."""

STYLE = """
:root {
  --paper: #ffffff; --ink: #1d1f21; --muted: #5f6670; --line: #d9dce1; --soft: #f5f6f8; --accent: #00558c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171a; --ink: #e6e7e9; --muted: #a2a9b4; --line: #34383e; --soft: #1e2125; --accent: #7cc4f5;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Liberation Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 75rem; margin: 0 auto; padding: 3rem 1.25rem 4rem; }
.kicker { margin: 0; color: var(--muted); font-size: .875rem; letter-spacing: .04em; }
h1, h2, h3, li, dt, dd, figcaption { overflow-wrap: anywhere; }
h1 { margin: .2rem 0 1.5rem; font-size: 1.9rem; line-height: 1.2; font-weight: 650; text-wrap: balance; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.2rem; font-weight: 650; }
h3 { margin: 1.75rem 0 .4rem; font-size: 1rem; font-weight: 650; }
p, ul, dl, figcaption { max-width: 46rem; }
.notes { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem 1.1rem; }
.notes h2 { margin: 0 0 .25rem; }
.claims dl { display: block; }
.claims dt { color: var(--ink); }
.claims dd { margin: .1rem 0 .8rem; color: var(--muted); font-size: .9rem; }
.notes ul { margin: 0; padding-left: 1.1rem; }
.small { color: var(--muted); font-size: .875rem; }
/* positioned, so that hidden text inside it cannot widen the page */
.wide { position: relative; overflow-x: auto; }
.unseen {
  position: absolute; width: 1px; height: 1px; margin: -1px; padding: 0; border: 0;
  overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: .8125rem; line-height: 1.35;
  font-variant-numeric: tabular-nums;
}
th, td { padding: .45rem .35rem; text-align: right; vertical-align: top; white-space: nowrap; }
th { font-weight: 600; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 500; white-space: normal; min-width: 9.5rem; }
tbody tr:hover > * { background: var(--soft); }
thead th { vertical-align: bottom; padding: 0; }
thead th, tfoot tr:last-child > *, tbody tr:last-child > * { border-bottom: 1.5px solid var(--ink); }
tfoot th { font-weight: 500; }
tfoot .chance > * { color: var(--muted); font-style: italic; font-weight: 400; }
thead button {
  all: unset; box-sizing: border-box; width: 100%; padding: .45rem .35rem;
  cursor: pointer; white-space: normal;
}
thead button:hover { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); }
th[aria-sort="ascending"] button, th[aria-sort="descending"] button { color: var(--accent); }
th[aria-sort="ascending"] { box-shadow: inset 0 2px 0 var(--accent); }
th[aria-sort="descending"] { box-shadow: inset 0 -2px 0 var(--accent); }
strong { font-weight: 700; }
.spread { color: var(--muted); font-size: .75rem; font-weight: 400; }
.paper { display: block; color: var(--muted); font-size: .75rem; font-weight: 400; }
figure { margin: 0 0 2.25rem; }
/* figures are drawn for a light page: on a dark one they lie on a light card */
.card { color-scheme: light; overflow-x: auto; padding: .75rem; background: #fff; border-radius: 6px; }
.card img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.card img.broad { min-width: 40rem; }
figcaption { margin-top: .6rem; color: var(--muted); font-size: .875rem; }
dl {
  display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem;
  margin: 0; font-size: .9375rem;
}
dt { color: var(--muted); }
dd { margin: 0; }
code, pre { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
code { background: var(--soft); padding: .1em .3em; border-radius: 3px; }
details { margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
summary { cursor: pointer; color: var(--accent); }
pre { background: var(--soft); padding: 1rem; border-radius: 4px; overflow: auto; max-height: 30rem; }
@media (max-width: 36rem) {
  main { padding-top: 1.5rem; }
  h1 { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print {
  :root { --paper: #fff; --ink: #000; --muted: #444; --line: #bbb; --soft: #fff; --accent: #000; }
  main { max-width: none; padding: 0; }
  body { font-size: 10.5pt; }
  table { font-size: 7.5pt; }
  th, td { padding: .2rem .3rem; }
  .spread, .paper { font-size: 7pt; }
  .wide, .card { overflow: visible; }
  .card { padding: 0; }
  .card img.broad { min-width: 0; }
  figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  details { display: none; }
}
"""

# Click a column's title to sort by it. Rows without a number stay last, and the foot stays where it is.
# Labels sort by the number in them if they have one, else as text.
SCRIPT = """
const collator = new Intl.Collator("en", {numeric: true});
const value = (row, i) => {
  const cell = row.cells[i];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return i === 0 ? cell.firstChild.textContent : null;
};
const compare = (a, b) => typeof a === "string" ? collator.compare(a, b) : a - b;
const sorted = (rows, i, sign) => [...rows].sort((r, s) => {
  const a = value(r, i), b = value(s, i);
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * compare(a, b);
});
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, i) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = i === 0 ? "ascending" : "descending";
      const other = i === 0 ? "descending" : "ascending";
      const way = head.getAttribute("aria-sort") === first ? other : first;
      heads.forEach(h => h.setAttribute("aria-sort", h === head ? way : "none"));
      body.append(...sorted(body.rows, i, way === "ascending" ? 1 : -1));
    });
  });
}
"""
