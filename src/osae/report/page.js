"use strict";
// The behaviour of the page: unpack its data, sort tables, draw figures. Text is only ever inserted as text.

const osae = (() => {
  const asked = new Map();  // pieces of data by name, each a promise
  const arriving = new Map();

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), char => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  // A piece is inside the page, or in a file beside it that calls `deliver`: pages from disk may not fetch.
  function load(name) {
    const inside = document.getElementById("piece-" + name);
    if (inside) return unpack(inside.textContent);
    return new Promise((resolve, reject) => {
      arriving.set(name, text => unpack(text).then(resolve, reject));
      const script = document.createElement("script");
      script.src = document.body.dataset.folder + "/" + name + ".js";
      script.onerror = () => reject(new Error(script.src + " is missing: copy the folder along with the page."));
      document.body.append(script);
    });
  }

  function piece(name) {
    if (!asked.has(name)) asked.set(name, load(name));
    return asked.get(name);
  }

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter(child => child !== null && child !== undefined));
    return made;
  }

  return {piece, element, deliver: (name, text) => arriving.get(name)?.(text)};
})();

// --- tables: select a column's title to sort by it; rows without a number stay last, the foot stays below ---

(() => {
  const collator = new Intl.Collator("en", {numeric: true});

  function valueOf(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    return column === 0 ? cell.firstChild.textContent : null;
  }

  function sorted(rows, column, sign) {
    return [...rows].sort((first, second) => {
      const a = valueOf(first, column), b = valueOf(second, column);
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "string" ? collator.compare(a, b) : a - b);
    });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = osae.element("button", {type: "button"}, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const [first, other] = column === 0 ? ["ascending", "descending"] : ["descending", "ascending"];
        const way = head.getAttribute("aria-sort") === first ? other : first;
        heads.forEach(each => each.setAttribute("aria-sort", each === head ? way : "none"));
        body.append(...sorted(body.rows, column, way === "ascending" ? 1 : -1));
      });
    });
  }
})();

// --- folded sections: a link to one, or to something inside it, opens it ---

(() => {
  function reveal(hash) {
    const target = hash.length > 1 && document.getElementById(hash.slice(1));
    if (!target) return;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
    // again while figures and units above it are drawn, until someone scrolls
    const growing = new ResizeObserver(() => target.scrollIntoView());
    const stop = () => growing.disconnect();
    growing.observe(document.querySelector("main"));
    setTimeout(stop, 2000);
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) window.addEventListener(kind, stop, {once: true});
  }

  window.addEventListener("hashchange", () => reveal(location.hash));
  // again, if the address already names the section
  document.addEventListener("click", event => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) reveal(link.hash);
  });
  reveal(location.hash);
})();

// --- figures ---

(() => {
  const {element, piece} = osae;
  const narrow = window.matchMedia("(max-width: 36rem)");
  const together = () => narrow.matches ? 1 : 4;  // more panels than this are shown one at a time
  const drawn = new Map();  // figures and what they show
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const CONTRAST = 4.5;  // of lines on a dark page

  let printing = false;

  function colors() {
    if (printing) return {ink: "#000000", muted: "#444444", line: "#bbbbbb", paper: "#ffffff", accent: "#00558c"};
    const style = getComputedStyle(document.documentElement);
    const names = ["ink", "muted", "line", "paper", "accent"];
    return Object.fromEntries(names.map(name => [name, style.getPropertyValue("--" + name).trim()]));
  }

  const channels = color => [1, 3, 5].map(place => parseInt(color.slice(place, place + 2), 16));

  // of a color, between 0 and 1, as the eye sees it
  function brightness(color) {
    const linear = channels(color).map(value => value / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
  }

  const mixed = (color, other, share) => "#" + channels(color).map((value, i) =>
    Math.round(value + share * (channels(other)[i] - value)).toString(16).padStart(2, "0")).join("");

  // black means the ink of the page, which is light on a dark one; other colors are made lighter there, as far as needed
  function shade(color, palette) {
    if (color === "#000000") return palette.ink;
    let share = 0;
    while (share < 1 && (brightness(mixed(color, "#ffffff", share)) + .05) / (brightness(palette.paper) + .05) < CONTRAST && brightness(palette.paper) < .5) share += .05;
    return mixed(color, "#ffffff", share);
  }

  const faint = color => color + "26";

  function lineTraces(panel, hidden, palette) {
    const traces = [];
    for (const line of panel.lines.filter(line => !hidden.has(line.name))) {
      const color = shade(line.color, palette), name = line.name;
      if (line.low) {
        const known = line.x.map((_, i) => i).filter(i => line.low[i] !== null && line.high[i] !== null);
        const around = [...known, ...known.slice().reverse()];
        traces.push({
          x: around.map(i => line.x[i]), fill: "toself", fillcolor: faint(color), line: {width: 0}, mode: "lines",
          y: around.map((i, place) => place < known.length ? line.high[i] : line.low[i]), hoverinfo: "skip",
        });
      }
      const customdata = line.x.map((_, i) => line.low ? interval(line.low[i], line.high[i]) : "");
      traces.push({
        x: line.x, y: line.y, name, customdata, mode: line.x.length > 60 ? "lines" : "lines+markers",
        line: {color, width: line.width, dash: line.dash}, marker: {size: 6},
        hovertemplate: "%{x}: %{y:.4~g}%{customdata}<extra>%{fullData.name}</extra>",
      });
    }
    return traces;
  }

  const interval = (low, high) => low === null || high === null ? "" : ` (${low.toPrecision(3)} to ${high.toPrecision(3)})`;

  function dotTraces(panel, palette) {
    const {x, y, color, text} = panel.dots;
    const scale = color ? {color, colorscale: "Viridis", reversescale: printing || !dark.matches, cmin: 0, cmax: 1,
      colorbar: {title: {text: panel.color_label, side: "right"}, thickness: 10, outlinewidth: 0}} : {color: palette.accent};
    return [{
      x, y, text, mode: "markers", marker: {size: x.length > 500 ? 4 : 7, opacity: .8, ...scale},
      hovertemplate: `${panel.x_label} %{x}<br>${panel.y_label} %{y}` + (color ? "<br>%{marker.color:.3f}" : "") + "<extra></extra>",
    }];
  }

  // what a cell of a map stands for: one place, or several
  function named(middles, places) {
    const size = middles.length > 1 ? middles[1] - middles[0] : 1;
    if (!places || size <= 1) return middles.map(middle => String(Number(middle.toPrecision(3))));
    const ends = middles.map((middle, i) => i + 1 < middles.length ? (middle + middles[i + 1]) / 2 : middle + size / 2);
    return ends.map((end, i) => `${Math.ceil(i ? ends[i - 1] : 0)}–${Math.ceil(end) - 1}`);
  }

  function mapTraces(panel, palette) {
    const {x, y, z, low, high, places} = panel.map;
    const across = named(x, places), down = named(y, places);
    const scale = low < 0 ? [[0, "#2166ac"], [.5, palette.paper], [1, "#b2182b"]] : [[0, palette.paper], [1, palette.accent]];
    return [{
      type: "heatmap", x, y, z, zmin: low, zmax: high, colorscale: scale, customdata: down.map(row => across.map(column => [column, row])),
      colorbar: {title: {text: panel.color_label, side: "right"}, thickness: 10, outlinewidth: 0},
      hovertemplate: `${panel.x_label} %{customdata[0]}<br>${panel.y_label} %{customdata[1]}<br>${panel.color_label} %{z:.3~g}<extra></extra>`,
    }];
  }

  function barTraces(panel, hidden, palette) {
    return panel.bars.filter(bar => !hidden.has(bar.name)).map(bar => ({
      type: "scatter", mode: "markers", x: bar.x, y: bar.y, name: bar.name,
      marker: {color: shade(bar.color, palette), size: 8, symbol: bar.symbol},
      error_x: bar.low ? {type: "data", symmetric: false, thickness: 1.5, width: 4,
        array: bar.x.map((x, i) => bar.high[i] === null ? 0 : bar.high[i] - x),
        arrayminus: bar.x.map((x, i) => bar.low[i] === null ? 0 : x - bar.low[i])} : undefined,
      hovertemplate: "%{y}: %{x:.4~g}<extra>%{fullData.name}</extra>",
    }));
  }

  // a long label takes two lines on a small screen
  const wrap = label => narrow.matches && label.length > 36 ? label.replace(/^(.{20,36}) /, "$1<br>") : label;

  function axis(label, log, palette) {
    return {
      title: {text: wrap(label), standoff: 8}, type: log ? "log" : "linear", gridcolor: palette.line, zeroline: false,
      linecolor: palette.muted, tickcolor: palette.muted, automargin: true, exponentformat: "power", ...(log ? {tickformat: "~g"} : {}),
    };
  }

  // numbers of steps, samples and units are large, and written as 50k or 2M
  const isLarge = panel => !panel.log_x && [panel.lines || [], panel.dots ? [panel.dots] : []].flat().some(each => each.x.some(x => x >= 1e4));

  // without numbers below zero, the axis has none either
  const isPositive = panel => Boolean(panel.lines) && panel.lines.every(line => line.y.every(y => y === null || y >= 0));
  const isSquare = panel => panel.square || Boolean(panel.map && panel.map.square);

  function layout(panel, palette) {
    const names = panel.bars ? {type: "category", autorange: "reversed"} : {};
    const square = isSquare(panel) ? {scaleanchor: "x", constrain: "domain"} : {};
    const x = {...axis(panel.x_label, panel.log_x, palette), ...(isLarge(panel) ? {exponentformat: "SI"} : {})};
    if (panel.ticks) Object.assign(x, {tickvals: panel.ticks, ticktext: panel.ticks.map(String)});
    return {
      title: {text: panel.title, font: {size: 14}}, height: panel.bars ? 140 + 26 * panel.bars[0].y.length : isSquare(panel) ? 420 : 360,
      font: {family: "inherit", size: 12, color: palette.ink}, paper_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 56, r: 16, t: 40, b: 48}, showlegend: false, dragmode: "zoom",
      xaxis: {...x, ...(panel.map || panel.square ? {constrain: "domain"} : {})},
      yaxis: {...axis(panel.y_label, panel.log_y, palette), ...names, ...square, ...(isPositive(panel) ? {rangemode: "nonnegative"} : {})},
      hoverlabel: {font: {family: "inherit"}},
    };
  }

  const PAPER = 660;  // pixels of a sheet in print

  function drawPanel(box, panel, hidden, palette, count) {
    const traces = panel.lines ? lineTraces(panel, hidden, palette) : panel.dots ? dotTraces(panel, palette)
      : panel.map ? mapTraces(panel, palette) : barTraces(panel, hidden, palette);
    const size = printing ? {width: count > 1 ? PAPER / 2 : PAPER, autosize: false} : {autosize: true};
    Plotly.react(box, traces, {...layout(panel, palette), ...size}, {displayModeBar: false, responsive: true});
    box.firstChild?.setAttribute("aria-hidden", "true");
  }

  function show(state, palette = colors()) {
    const panels = shownPanels(state);
    state.swatches.forEach(([swatch, color]) => { swatch.style.color = shade(color, palette); });
    while (state.boxes.children.length > panels.length) state.boxes.lastChild.remove();
    while (state.boxes.children.length < panels.length) {
      state.boxes.append(element("div", {class: "plot", role: "img"}));
    }
    panels.forEach((panel, i) => {
      const box = state.boxes.children[i];
      box.classList.toggle("square", isSquare(panel));
      box.setAttribute("aria-label", [panel.group, panel.title, state.plot.caption].filter(Boolean).join(". "));
      drawPanel(box, panel, state.hidden, palette, panels.length);
    });
  }

  // by buttons as well as by dragging, so that the keyboard can do it
  function zoom(state, factor) {
    for (const box of state.boxes.children) {
      const change = {};
      for (const name of ["xaxis", "yaxis"]) {
        const [low, high] = box._fullLayout[name].range, middle = (low + high) / 2, half = (high - low) / 2;
        if (factor === 0) change[name + ".autorange"] = box.layout[name].autorange === "reversed" ? "reversed" : true;
        else change[name + ".range"] = [middle - half * factor, middle + half * factor];
      }
      Plotly.relayout(box, change);
    }
  }

  const PATTERNS = {dash: "7 4", dot: "2 3", dashdot: "7 3 2 3"};

  // a piece of the line, or a dot
  function drawSwatch(line) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const mark = document.createElementNS(svg.namespaceURI, line.symbol ? "circle" : "line");
    const shape = line.symbol ? {cx: 12, cy: 5, r: 3.5, fill: line.symbol.endsWith("open") ? "none" : "currentColor"}
      : {x1: 0, x2: 24, y1: 5, y2: 5, "stroke-dasharray": PATTERNS[line.dash] || "none"};
    for (const [name, value] of Object.entries({...shape, stroke: "currentColor", "stroke-width": line.symbol ? 2 : 3})) mark.setAttribute(name, value);
    for (const [name, value] of Object.entries({class: "swatch", viewBox: "0 0 24 10", "aria-hidden": "true"})) svg.setAttribute(name, value);
    svg.append(mark);
    return svg;
  }

  function legend(state) {
    const named = new Map();
    state.swatches = [];
    for (const panel of state.plot.panels) {
      for (const line of [...(panel.lines || []), ...(panel.bars || [])]) named.set(line.name, line);
    }
    if (named.size < 2) return null;
    return element("div", {class: "legend", role: "group", "aria-label": "Shown in this figure"}, ...[...named].map(([name, line]) => {
      const swatch = drawSwatch(line);
      state.swatches.push([swatch, line.color]);
      const button = element("button", {type: "button", "aria-pressed": "true"}, swatch, name);
      button.addEventListener("click", () => {
        const off = state.hidden.has(name);
        state.hidden[off ? "delete" : "add"](name);
        button.setAttribute("aria-pressed", String(off));
        show(state);
      });
      return button;
    }));
  }

  // panels that are shown together: those of a group, or all if they are few, or one at a time
  function groups(panels) {
    if (panels.some(panel => panel.group)) {
      const names = [...new Set(panels.map(panel => panel.group))];
      return names.map(name => ({name, panels: panels.filter(panel => panel.group === name)}));
    }
    return panels.length <= together() ? [{name: "", panels}] : panels.map(panel => ({name: panel.title, panels: [panel]}));
  }

  // two panels to choose, where there is space: the first ones are often the baselines, the last one the method
  const isPair = state => !narrow.matches && state.groups.length > 1 && !state.plot.panels.some(panel => panel.group);

  function choosers(state) {
    if (state.groups.length < 2) return [];
    const make = (word, name) => {
      const select = element("select", {}, ...state.groups.map((group, i) => element("option", {value: i}, group.name)));
      select.value = state[name];
      select.addEventListener("change", () => { state[name] = Number(select.value); show(state); });
      return element("label", {class: "chooser"}, word, select);
    };
    return [make("Show ", "choice"), ...(isPair(state) ? [make("next to ", "other")] : [])];
  }

  const shownPanels = state => [...state.groups[state.choice].panels, ...(isPair(state) ? state.groups[state.other].panels : [])];

  // the plotting library is inside the page, and runs when the first figure comes into view
  function startPlotly() {
    if (!window.Plotly) document.head.append(element("script", {}, document.getElementById("plotly").textContent));
  }

  async function draw(figure) {
    if (drawn.has(figure)) return;
    const state = {plot: null, groups: [], hidden: new Set(), swatches: [], choice: 0, other: 0, boxes: element("div", {class: "plots"})};
    drawn.set(figure, state);
    state.plot = await piece(figure.dataset.plot);
    arrange(figure, state);
    startPlotly();
    show(state);
    figure.dataset.drawn = "yes";
  }

  function arrange(figure, state) {
    state.groups = groups(state.plot.panels);
    [state.choice, state.other] = [0, state.groups.length - 1];
    state.hidden.clear();
    const zooming = element("span", {class: "zoom", role: "group", "aria-label": "Zoom"},
      element("button", {type: "button", onclick: () => zoom(state, .5), "aria-label": "Zoom in"}, "+"),
      element("button", {type: "button", onclick: () => zoom(state, 2), "aria-label": "Zoom out"}, "−"),
      element("button", {type: "button", onclick: () => zoom(state, 0)}, "Reset zoom"));
    const tools = element("div", {class: "tools"}, ...choosers(state), legend(state), zooming);
    figure.querySelector(".drawing").replaceChildren(tools, state.boxes);
  }

  const figures = [...document.querySelectorAll("figure[data-plot]")];
  const near = new IntersectionObserver(entries => {
    entries.filter(entry => entry.isIntersecting).forEach(entry => draw(entry.target));
  }, {rootMargin: "400px"});
  const showAll = () => drawn.forEach(state => state.plot && show(state));
  dark.addEventListener("change", showAll);
  narrow.addEventListener("change", () => {
    drawn.forEach((state, figure) => state.plot && arrange(figure, state));
    showAll();
  });
  // the units come first, as they are above; then figures in view, then all are unpacked, as printing does not wait for it
  function begin() {
    figures.forEach(figure => near.observe(figure));
    if (figures.length) requestIdleCallback(() => { startPlotly(); figures.forEach(figure => piece(figure.dataset.plot)); }, {timeout: 5000});
  }
  if (document.getElementById("units")) document.addEventListener("osae-ready", begin, {once: true});
  else begin();
  // on paper: every figure and table, as wide as the paper, in dark ink
  const folded = [...document.querySelectorAll("details.more")];
  // what was drawn while it was folded has no width yet
  folded.forEach(each => each.addEventListener("toggle", () => drawn.forEach((state, figure) => {
    if (each.open && each.contains(figure) && figure.dataset.drawn) show(state);
  })));
  let opened = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    opened = folded.filter(each => !each.open);
    opened.forEach(each => { each.open = true; });
    figures.forEach(draw);
    showAll();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    opened.forEach(each => { each.open = false; });
    showAll();
  });
})();
