"use strict";
// The unit browser: a list of units to sort, filter and search, and one unit beside its partners. Addresses are
// #unit/SAE/UNIT. All text is inserted as text.

(() => {
  const root = document.getElementById("units");
  if (!root) return;
  const {element, piece} = osae;
  const ROWS = 50;  // of the list on a page
  const KINDS = ["Strongest", "Across its range, from the top", "Random"];
  const phone = window.matchMedia("(max-width: 36rem)");
  const few = () => phone.matches ? 3 : 6;  // contexts of a kind that are shown at once
  const SECTIONS = new Set();  // titles of what was opened, which stays open from unit to unit
  const find = name => root.querySelector(`[data-part="${name}"]`);
  const narrow = window.matchMedia("(max-width: 60rem)");
  const state = {sae: 0, sort: null, way: 1, query: "", page: 0, rows: [], selected: -1, jump: false};
  let index = null;
  let lower = [];  // the vocabulary in lower case

  // --- numbers and tokens ---

  function write(column, value) {
    if (value === null || value === undefined) return "–";
    if (column.format === "fixed") return value.toFixed(column.digits);
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(column.digits - 1);
    return String(Number(value.toPrecision(column.digits)));
  }

  const tokenText = number => number < 0 ? "" : index.vocabulary[number];
  const legible = text => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")
    .replace(/ {4,}/g, run => `␣×${run.length}`).replace(/^ +$/, run => "␣".repeat(run.length)) || "∅";

  function chip(number) {
    return element("span", {class: "token"}, legible(tokenText(number)));
  }

  // --- the list ---

  function tokensMatching(query) {
    const wanted = new Uint8Array(lower.length);
    for (let i = 0; i < lower.length; i++) wanted[i] = lower[i].includes(query) ? 1 : 0;
    return wanted;
  }

  function readFilters() {
    return [...find("filters").querySelectorAll(".filter")].map(row => {
      const [low, high] = [...row.querySelectorAll("input")].map(input => input.value === "" ? null : Number(input.value));
      return {scores: index.saes[state.sae].scores[row.querySelector("select").value], low, high};
    }).filter(filter => filter.scores && (filter.low !== null || filter.high !== null));
  }

  function passes(filter, row) {
    const value = filter.scores[row];
    return value !== null && (filter.low === null || value >= filter.low) && (filter.high === null || value <= filter.high);
  }

  function select() {
    const sae = index.saes[state.sae], query = state.query.toLowerCase(), filters = readFilters();
    const wanted = query && sae.tokens ? tokensMatching(query) : null;
    const rows = [];
    for (let row = 0; row < sae.unit.length; row++) {
      const named = query && String(sae.unit[row]) === query;
      const hit = !query || named || (wanted && sae.tokens[row].some(token => wanted[token]));
      if (hit && filters.every(filter => passes(filter, row))) rows.push(row);
    }
    if (state.sort !== null) {
      const scores = sae.scores[state.sort];
      rows.sort((a, b) => {
        if (scores[a] === null || scores[b] === null) return (scores[a] === null) - (scores[b] === null);
        return state.way * (scores[a] - scores[b]) || a - b;
      });
    } else if (state.way < 0) rows.reverse();
    return rows;
  }

  function refresh() {
    performance.mark("osae-select");
    state.rows = select();
    state.page = Math.max(0, Math.floor(state.rows.indexOf(state.selected) / ROWS));
    renderList();
    performance.measure("osae-select", "osae-select");
  }

  function renderHead() {
    const sae = index.saes[state.sae];
    const heads = [{key: null, title: "Unit", meaning: "Position of the unit in the dictionary"}, ...sae.columns].map(column => {
      const sorted = state.sort === column.key ? (state.way > 0 ? "ascending" : "descending") : "none";
      const button = element("button", {type: "button", title: column.meaning, onclick: () => sortBy(column.key)}, column.title);
      return element("th", {scope: "col", "aria-sort": sorted}, button);
    });
    if (sae.tokens) heads.splice(1, 0, element("th", {scope: "col", class: "tokens"}, "Fires most on"));
    find("head").replaceChildren(...heads);
  }

  function sortBy(key) {
    const first = key === null ? 1 : -1;
    state.way = state.sort === key ? -state.way : first;
    state.sort = key;
    refresh();
    find("head").querySelector("[aria-sort=ascending] button, [aria-sort=descending] button").focus();
  }

  function renderList() {
    renderHead();
    const sae = index.saes[state.sae], from = state.page * ROWS, shown = state.rows.slice(from, from + ROWS);
    find("body").replaceChildren(...shown.map(row => renderRow(sae, row)));
    const total = state.rows.length;
    find("count").textContent = total === 0 ? "no unit" : `${from + 1}–${from + shown.length} of ${total.toLocaleString("en")} units`;
    find("previous").disabled = state.page === 0;
    find("next").disabled = from + ROWS >= total;
  }

  function renderRow(sae, row) {
    const link = element("a", {href: `#unit/${state.sae}/${sae.unit[row]}`}, String(sae.unit[row]));
    const cells = sae.columns.map(column => element("td", {}, write(column, sae.scores[column.key][row])));
    if (sae.tokens) cells.unshift(element("td", {class: "tokens"}, ...sae.tokens[row].slice(0, 4).map(chip)));
    const made = element("tr", {"data-row": row, onclick: () => { state.jump = narrow.matches; location.hash = link.hash; }}, element("th", {scope: "row"}, link), ...cells);
    if (row === state.selected) made.setAttribute("aria-current", "true");
    return made;
  }

  function turn(pages) {
    state.page = Math.min(Math.max(0, state.page + pages), Math.max(0, Math.ceil(state.rows.length / ROWS) - 1));
    renderList();
  }

  function addFilter() {
    const number = word => element("input", {type: "number", step: "any", placeholder: word, "aria-label": word, oninput: refresh});
    const columns = index.saes[state.sae].columns.map(column => element("option", {value: column.key}, column.title));
    const row = element("div", {class: "filter"},
      element("select", {"aria-label": "Filter by", onchange: refresh}, ...columns), number("at least"), number("at most"),
      element("button", {type: "button", "aria-label": "Remove this filter", onclick: () => { row.remove(); refresh(); }}, "×"));
    find("filters").append(row);
    row.querySelector("select").focus();
  }

  // --- one unit ---

  function heat(level) {
    const span = element("span", {class: "piece"});
    if (level > 0) span.style.setProperty("--level", (level / 35).toFixed(2));
    if (level > 0) span.classList.add("active");
    return span;
  }

  // where a context is in the text
  const addressOf = ([, , document_, position]) => `${document_}/${position}`;

  // among the strongest of both units, if they were collected from the same text
  function sharedWith(main, held, sameText) {
    const theirs = new Set(sameText ? main.contexts.filter(context => context[0] === 0).map(addressOf) : []);
    return new Set(held.contexts.filter(context => context[0] === 0).map(addressOf).filter(address => theirs.has(address)));
  }

  function renderContext(context, before, shared) {
    const [, strength, document_, position, tokens, levels] = context;
    const both = shared.has(addressOf(context));
    const shown = element("span", {});
    const line = element("p", {class: both ? "context shared" : "context", title: `activation ${strength}, document ${document_}, position ${position}`},
      element("span", {class: "strength"}, String(Number(strength.toPrecision(3))), both ? element("span", {class: "both"}, "both") : null), shown);
    tokens.forEach((token, place) => {
      if (token < 0) return;
      const span = heat(parseInt(levels[place], 36));
      span.textContent = tokenText(token).replaceAll("\n", "⏎");
      if (place === before) span.classList.add("at");
      shown.append(span);
    });
    return line;
  }

  // a section that is opened on one card is open on all of them, and stays open for the next unit
  function fold(key, title, ...children) {
    const made = element("details", {"data-section": key}, element("summary", {}, title), ...children);
    made.open = SECTIONS.has(key);
    made.addEventListener("toggle", () => {
      if (made.open === SECTIONS.has(key)) return;
      SECTIONS[made.open ? "add" : "delete"](key);
      root.querySelectorAll(`details[data-section="${key}"]`).forEach(each => { each.open = made.open; });
    });
    return made;
  }

  function renderContexts(held, before, shared) {
    return KINDS.map((title, kind) => {
      const mine = held.filter(context => context[0] === kind).map(context => renderContext(context, before, shared));
      if (!mine.length) return null;
      if (kind > 0) return fold(`kind-${kind}`, title, ...mine);
      const rest = mine.slice(few());
      return element("div", {}, element("h4", {}, title), ...mine.slice(0, few()), rest.length ? fold("more", `${rest.length} more`, ...rest) : null);
    });
  }

  function renderTokens(held) {
    const rows = held.slice(0, 8).map(([token, count, share, of]) => element("li", {}, chip(token),
      ` ${(100 * share).toFixed(0)} % of its activation, fires on ${count.toLocaleString("en")} of ${of.toLocaleString("en")}`));
    return rows.length ? fold("tokens", "Tokens", element("ul", {class: "plain"}, ...rows)) : null;
  }

  function renderLens(lens) {
    if (!lens) return null;
    const line = (word, tokens) => element("p", {class: "lens"}, `${word} `, ...tokens.map(chip));
    return element("div", {}, element("h4", {}, "Logit lens"), line("raises", lens[0]), line("lowers", lens[1]));
  }

  function renderPositions(shares) {
    if (!shares) return null;
    const most = Math.max(...shares, 1e-12);
    const bars = shares.map(share => { const bar = element("span"); bar.style.height = `${Math.round(100 * share / most)}%`; return bar; });
    const words = shares.map(share => `${(100 * share).toPrecision(2)} %`).join(", ");
    return element("div", {}, element("h4", {}, "Fires in each eighth of a context"),
      element("div", {class: "positions", role: "img", "aria-label": words, title: words}, ...bars));
  }

  function renderScores(sae, row) {
    return element("dl", {class: "scores"}, ...sae.columns.map(column => element("div", {},
      element("dt", {title: column.meaning}, column.title), element("dd", {}, write(column, sae.scores[column.key][row])))));
  }

  const contextsOf = async (place, unit) => {
    const sae = index.saes[place];
    return sae.contexts ? (await piece(`units-${place}-${Math.floor(unit / sae.per_piece)}`))[unit % sae.per_piece] : null;
  };

  function renderHeading(place, unit, main) {
    const {name} = index.saes[place];
    const title = main ? `Unit ${unit} of ${name}` : element("a", {href: `#unit/${place}/${unit}`}, `${name}, unit ${unit}`);
    return element("h3", {}, title);
  }

  // a unit, or one that is shown beside another, whose place and number are `beside`
  async function renderCard(place, unit, note, beside) {
    const sae = index.saes[place], row = sae.rowOf.get(unit), main = beside === null;
    const card = element("article", {class: main ? "card main" : "card", "data-unit": `${place}/${unit}`}, renderHeading(place, unit, main));
    const scores = row === undefined ? null : renderScores(sae, row);
    if (note) card.append(element("p", {class: "small"}, note));
    if (main && scores) card.append(scores);
    card.append(...[...await renderText(place, unit, beside), main || !scores ? null : fold("scores", "Scores", scores)].filter(Boolean));
    return card;
  }

  // where the unit fires
  async function renderText(place, unit, beside) {
    const sae = index.saes[place], held = await contextsOf(place, unit);
    if (!held) return [beside && !index.saes.some(each => each.contexts) ? null : renderAbsence()];
    if (!held.contexts.length) return [element("p", {class: "small"}, "This unit never fires on this text.")];
    const other = beside && await contextsOf(...beside);
    const shared = other ? sharedWith(other, held, index.saes[beside[0]].text === sae.text) : new Set();
    const of = held.contexts.filter(context => context[0] === 0).length;
    const said = shared.size ? element("p", {class: "small"}, `${shared.size} of its ${of} strongest contexts ${shared.size === 1 ? "is" : "are"} also among those of unit ${beside[1]}.`) : null;
    return [said, ...renderContexts(held.contexts, sae.before, shared), renderTokens(held.tokens), renderLens(held.lens), renderPositions(held.positions)];
  }

  const renderAbsence = () => element("p", {class: "small"}, "No contexts: collect them with ", element("code", {}, "osae contexts"), ".");

  function partnersOf(place, row) {
    return index.saes[place].partners.map(partner => {
      const unit = partner.unit[row];
      if (unit === null) return null;
      const found = partner.found ? (partner.found[row] ? "; found again" : "; not found again") : "";
      const together = partner.correlation && partner.correlation[row] !== null ? `, correlation ${partner.correlation[row].toFixed(3)}` : "";
      return [partner.sae, unit, `cosine ${partner.cosine[row].toFixed(3)}${together}${found}`];
    }).filter(Boolean);
  }

  function splitsOf(place, unit) {
    const parts = [];
    for (const split of index.splits) {
      if (split.sae === place && split.unit === unit) {
        split.units.forEach((part, i) => parts.push([split.other, part, `part ${i + 1} of ${split.units.length}: cosine ${split.cosines[i].toFixed(3)}`]));
      } else if (split.other === place && split.units.includes(unit)) {
        parts.push([split.sae, split.unit, `one unit there, ${split.units.length} here: ${split.units.join(", ")}`]);
      }
    }
    return parts;
  }

  // the unit and what is shown beside it, and why: partners first, then parts
  function renderCards(place, unit) {
    const row = index.saes[place].rowOf.get(unit), beside = new Map();
    for (const [sae, number, note] of [...(row === undefined ? [] : partnersOf(place, row)), ...splitsOf(place, unit)]) {
      const before = beside.get(`${sae}/${number}`);
      beside.set(`${sae}/${number}`, [sae, number, before ? `${before[2]}; ${note.split(":")[0]}` : note]);
    }
    return Promise.all([renderCard(place, unit, "", null), ...[...beside.values()].map(one => renderCard(...one, [place, unit]))]);
  }

  // the first unit, until one is opened; on a small screen the list comes first
  async function preview() {
    if (narrow.matches || !index.saes[0].unit.length) return;
    const cards = await renderCards(0, index.saes[0].unit[0]);
    if (!root.dataset.open && !location.hash.startsWith("#unit/")) find("detail").replaceChildren(...cards);
  }

  async function open(place, unit) {
    const row = index.saes[place].rowOf.get(unit);
    if (place !== state.sae) { state.sae = place; find("sae").value = place; find("filters").replaceChildren(); state.sort = null; state.way = 1; }
    state.selected = row === undefined ? -1 : row;
    if (!state.rows.includes(state.selected)) { state.query = find("search").value = ""; find("filters").replaceChildren(); }
    const listed = root.querySelector(".list").contains(document.activeElement);
    refresh();
    if (listed) find("body").querySelector("[aria-current] a")?.focus({preventScroll: true});  // its row was drawn anew
    const cards = await renderCards(place, unit);
    if (location.hash !== `#unit/${place}/${unit}`) return;  // another one was opened meanwhile
    find("detail").replaceChildren(...cards);
    find("detail").scrollTop = 0;
    root.dataset.open = `${place}/${unit}`;
    if (state.jump) find("detail").scrollIntoView();  // it is below the list
    state.jump = false;
    scrollList();
  }

  // within the list: the page itself stays where it is
  function scrollList() {
    const row = find("body").querySelector("[aria-current]"), box = root.querySelector(".list .wide");
    if (!row) return;
    const top = row.offsetTop - find("head").offsetHeight, bottom = row.offsetTop + row.offsetHeight;
    box.scrollTop = Math.min(top, Math.max(box.scrollTop, bottom - box.clientHeight));
  }

  function follow() {
    const parts = location.hash.match(/^#unit\/(\d+)\/(\d+)$/);
    if (!parts) return;
    const [place, unit] = [Number(parts[1]), Number(parts[2])], sae = index.saes[place];
    if (!sae || unit >= sae.total) return;
    open(place, unit).catch(error => find("detail").replaceChildren(element("p", {role: "alert"}, error.message)));
  }

  // --- keyboard: up and down (or k and j) open the next unit, p or 1 its partner, 2 the next, / goes to the search ---

  function move(steps) {
    const at = state.rows.indexOf(state.selected);
    const next = state.rows[Math.min(Math.max(0, at + steps), state.rows.length - 1)];
    if (next === undefined) return;
    location.hash = `#unit/${state.sae}/${index.saes[state.sae].unit[next]}`;
  }

  function press(event) {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const elsewhere = !root.contains(event.target);  // where only letters and digits are ours, once a unit is open
    if (elsewhere && (event.target !== document.body || event.key.length > 1 || !root.dataset.open)) return;
    const steps = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: ROWS, PageUp: -ROWS, Home: -1e9, End: 1e9}[event.key];
    if (steps !== undefined && event.target.closest('[data-part="detail"]') && event.key.length > 1) return;  // scrolls there
    if (steps !== undefined) move(steps);
    else if (event.key === "/") find("search").focus();
    else if (event.key === "p" || /^[1-9]$/.test(event.key)) find("detail").querySelectorAll(".card:not(.main) h3 a")[event.key === "p" ? 0 : event.key - 1]?.click();
    else return;
    event.preventDefault();
  }

  // --- start ---

  async function start() {
    index = await piece("units");
    lower = index.vocabulary.map(text => text.toLowerCase());
    for (const sae of index.saes) {
      sae.rowOf = new Map(sae.unit.map((unit, row) => [unit, row]));
      find("sae").append(element("option", {value: index.saes.indexOf(sae)}, sae.name));
    }
    find("sae").addEventListener("change", event => {
      location.hash = `#unit/${event.target.value}/${index.saes[event.target.value].unit[0]}`;
    });
    find("search").addEventListener("input", event => { state.query = event.target.value.trim(); state.page = 0; refresh(); });
    find("add").addEventListener("click", addFilter);
    find("previous").addEventListener("click", () => turn(-1));
    find("next").addEventListener("click", () => turn(1));
    document.addEventListener("keydown", press);
    window.addEventListener("hashchange", follow);
    state.rows = select();
    renderList();
    if (location.hash.startsWith("#unit/")) { root.scrollIntoView(); follow(); }
    else preview();
    performance.mark("osae-ready");
    root.dataset.ready = "yes";
  }

  start().catch(error => find("detail").replaceChildren(element("p", {role: "alert"}, error.message)))
    .finally(() => document.dispatchEvent(new Event("osae-ready")));
})();
