// The map: what every block did at every step, its views, its cursor, its zoom, and the same as a table.
const frameNode = find(".plot-frame"), plot = find(".plot"), tip = find(".tip"), live = find(".map > [aria-live]");
const legend = find(".legend"), wait = find(".plot-wait"), versus = find(".versus-pick"), which = find(".which-pick"), note = find(".map-note");
const tableFrame = find(".table-frame"), tableButton = find(".as-table"), unzoom = find(".unzoom");
wait.hidden = !lab.state.source;          // where nothing was recorded or run, nothing is on its way
let framed = "", resting = 0, data = null, cells = null, cursor = null, column = null, pinned = null, range = null, level = "";
const board = chart(plot), beside = matchMedia("(min-width: 901px)");
board.zoomable = !matchMedia("(pointer: coarse)").matches;
board.zoomed = (next) => { range = next; unzoom.hidden = !range; redraw(); };

const muted = () => getComputedStyle(element).getPropertyValue("--muted").trim() || "#5a6072";
const ink = () => getComputedStyle(element).getPropertyValue("--ink").trim() || "#1d2130";
function box(block, step, grow = 0) {
  const h = 0.5 - 0.03 + grow;
  return { x: [step - h, step + h, step + h, step - h, step - h], y: [block - h, block - h, block + h, block + h, block - h] };
}
const at = (codes, block, step) => codes[block * data.steps + step];

function levelNow() {
  const height = frameNode.clientHeight - EDGE.t - EDGE.b, width = frameNode.clientWidth - EDGE.l - EDGE.r;
  const [x0, x1] = range?.x ?? [-0.5, data.steps - 0.5], [y0, y1] = range?.y ?? [data.blocks.length - 0.5, -0.5];
  return width / Math.abs(x1 - x0) >= 10 && height / Math.abs(y1 - y0) >= 13 ? "fine" : "coarse";
}
// The bits as characters, where a tile is large enough to hold one: colour is never the only sign.
function glyphs() {
  const G = data.groups.length, across = Math.ceil(G / 2), [x0, x1] = range?.x ?? [-0.5, data.steps - 0.5], [y0, y1] = range?.y ?? [data.blocks.length - 0.5, -0.5];
  const tile = Math.min((frameNode.clientWidth - EDGE.l - EDGE.r) / Math.abs(x1 - x0) / across, (frameNode.clientHeight - EDGE.t - EDGE.b) / Math.abs(y1 - y0) / 2);
  if (tile < 13) return [];
  const light = { x: [], y: [], text: [] }, dark_ = { x: [], y: [], text: [] }, dots = { x: [], y: [], text: [] };
  const pale = dark() ? [2, 4, 6] : [2, 7];
  for (let b = Math.max(0, Math.floor(Math.min(y0, y1))); b < Math.min(data.blocks.length, Math.max(y0, y1) + 1); b++) {
    for (let s = Math.max(0, Math.floor(Math.min(x0, x1))); s < Math.min(data.steps, Math.max(x0, x1) + 1); s++) {
      for (let g = 0; g < G; g++) {
        const code = cells[(b * data.steps + s) * G + g];
        if (!code || (code === 1 && g)) continue;
        const into = code === 1 ? dots : pale.includes(code) ? dark_ : light;
        into.x.push(code === 1 ? s : s - 0.5 + (g % across + 0.5) / across);
        into.y.push(code === 1 ? b : b - 0.5 + (Math.floor(g / across) + 0.5) / 2);
        into.text.push(code === 1 ? "·" : word(code));
      }
    }
  }
  const trace = (points, color) => ({ mode: "text", textfont: { size: Math.min(13, tile * 0.66), color }, ...points });
  return [trace(light, "#FFFFFF"), trace(dark_, dark() ? "#1b1030" : "#3a3000"), trace(dots, dark() ? "#8a8fa0" : "#3a3000")];
}
function draw() {
  if (!data || !frameNode.clientWidth) return;            // in a place that is not shown; the size observer draws it then
  // As high as the window allows: beside the knobs it stays in sight, with its headline and an answer where there is room.
  const rows = data.blocks.length || 12, tall = beside.matches ? (innerHeight - 150) / 30 : innerHeight > 800 ? 25 : 19;
  const row = rows > 20 ? 13.6 : frameNode.clientWidth > 620 ? Math.min(30, tall) : 20, most = beside.matches ? innerHeight - 340 : Infinity;
  frameNode.style.height = `${Math.max(220, Math.min(640, rows * row, most)) + 38}px`;
  const before = level;
  level = levelNow();
  if (before && before !== level) headings();             // the key to a cell's tiles belongs to the fine level only
  const traces = themed([...data[level], ...data.over]);
  if (level === "fine" && data.view === "decision") traces.push(...glyphs());
  if (cursor && data.blocks.length) {
    traces.push({ mode: "lines", line: { color: themed("#FFFFFF"), width: 5 }, ...box(cursor.block, cursor.step) });
    traces.push({ mode: "lines", line: { color: ink(), width: 2.5 }, ...box(cursor.block, cursor.step) });
  }
  wait.hidden = true;
  board.draw(traces, themed(data.layout), range, column >= 0 && column < data.steps ? column : null, muted());
  element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
  element.dataset.level = level; element.dataset.seen = data.id ?? "";
  if (early) { const { left, top } = frameNode.getBoundingClientRect(), [x, y] = early; early = null; clicked({ clientX: left + x, clientY: top + y }); }
}
// Its column stays in the window beside the knobs (lab.css). What is opened below the map is read by scrolling, so then the
// column goes with the page until its end is seen, and back.
const side = element.closest(".lab-right"), GAP = 8;
let stuck = GAP, scrolled = scrollY;
function stick(top) { if (side && top !== stuck) { stuck = top; side.style.top = `${top}px`; } }
const opened = () => !tableFrame.hidden || Boolean(find(".numbers[open]"));
window.addEventListener("scroll", () => {
  const by = scrollY - scrolled;
  scrolled += by;
  if (by < 0) stick(Math.min(GAP, stuck - by));
  else if (opened() && side) stick(Math.min(stuck, Math.max(stuck - by, innerHeight - side.offsetHeight - GAP)));
}, { passive: true });
lab.on("look", ({ policy }) => { if (policy && !opened()) stick(GAP); }, false);
new ResizeObserver(() => redraw()).observe(frameNode);
window.addEventListener("resize", () => redraw());
let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}
// Where a cell is in the window.
function rectangle({ block, step }) {
  if (!data) return null;
  const area = plot.getBoundingClientRect(), view = { x: range?.x ?? [-0.5, data.steps - 0.5], y: range?.y ?? [data.blocks.length - 0.5, -0.5] }, X = (v) => area.left + EDGE.l + ((v - view.x[0]) / (view.x[1] - view.x[0])) * (area.width - EDGE.l - EDGE.r);
  const Y = (v) => area.top + EDGE.t + ((v - view.y[1]) / (view.y[0] - view.y[1])) * (area.height - EDGE.t - EDGE.b);
  return { left: X(step - 0.5), right: X(step + 0.5), top: Y(block - 0.5), bottom: Y(block + 0.5) };
}
answers(find(".home"), rectangle, () => frameNode.focus({ preventScroll: true }));
function cellAt(event) {
  const spot = data && board.at(event);
  if (!spot) return null;
  const step = Math.round(spot.x), block = Math.round(spot.y);
  return step < 0 || block < 0 || step >= data.steps || block >= data.blocks.length ? null : { block, step };
}
const word = (code) => ["", "–", "4", "8", "16", "16", "16", "?"][code] ?? "";
function spoken({ block, step }) {
  const head = t("lab.map.cell", { block: data.blocks[block], step: step + 1 });
  if (!cells) return head;
  const codes = data.groups.map((_, g) => cells[(block * data.steps + step) * data.groups.length + g]);
  if (!codes.length || codes[0] === 0) return `${head}: ${t("lab.map.pending")}`;
  const what = codes[0] === 1 ? t("lab.map.skipped") : data.groups.map((name, g) => `${name} ${word(codes[g])}`).join(" · ");
  const reason = data.reasons.names[at(data.reasons.decoded, block, step)] ?? "";
  return `${head}: ${what}${reason ? ` (${reason})` : ""}`;
}
// A click is what moved less than a drag. One that is there before the map is answered with it.
let down = null, early = null;
frameNode.addEventListener("pointerdown", (event) => { down = event.isPrimary ? [event.clientX, event.clientY] : null; }, true);
window.addEventListener("pointerup", (event) => {
  const from = down; down = null;
  if (!from || Math.hypot(event.clientX - from[0], event.clientY - from[1]) > 5) return;
  const { left, top } = frameNode.getBoundingClientRect();
  if (!wait.hidden) { if (frameNode.contains(event.target)) early = [event.clientX - left, event.clientY - top]; }
  else if (clicked(event)) frameNode.focus({ preventScroll: true });
}, true);
function clicked(event) {
  const cell = cellAt(event);
  if (cell) { tip.hidden = true; move(cell, true); }
  return cell;
}
frameNode.addEventListener("pointermove", (event) => {
  const cell = cellAt(event);
  tip.hidden = !cell || event.buttons > 0 || event.pointerType === "touch" || (pinned?.block === cell.block && pinned.step === cell.step);
  if (tip.hidden) return;
  tip.textContent = spoken(cell);
  const area = frameNode.getBoundingClientRect(), x = event.clientX - area.left, y = event.clientY - area.top;
  tip.style.left = `${Math.max(4, Math.min(x + 14, area.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > area.height ? y - tip.offsetHeight - 10 : y + 18}px`;
});
frameNode.addEventListener("pointerleave", () => { tip.hidden = true; });
function move(cell, pin) {
  cursor = cell; column = cell.step; redraw();
  live.textContent = spoken(cell);
  if (pin) { pinned = cell; explain(true); lab.emit("step", { step: cell.step + 1, from: "map" }); }
}
function explain(clicked) { if (pinned) lab.emit("pin", { block: pinned.block, step: pinned.step, clicked: clicked === true }); }
frameNode.addEventListener("keydown", (event) => {
  if (!data?.blocks.length) return;
  const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e6], End: [0, 1e6] }[event.key];
  const from = cursor ?? { block: 0, step: -1 };
  if (by) {
    event.preventDefault();
    const clamp = (value, top) => Math.max(0, Math.min(top, value));
    move({ block: clamp(from.block + by[0], data.blocks.length - 1), step: clamp(from.step + by[1], data.steps - 1) }, false);
  } else if ((event.key === "Enter" || event.key === " ") && cursor) { event.preventDefault(); move(cursor, true); }
  else if (event.key === "Escape") { cursor = null; redraw(); }
});
for (const b of element.querySelectorAll("[data-view]")) {
  b.addEventListener("click", () => { lab.emit("look", { view: b.dataset.view }); });
}
let wish = null;           // a view that was asked for and is not there yet
function pressed(view) { for (const b of element.querySelectorAll("[data-view]")) b.setAttribute("aria-pressed", String(b.dataset.view === view)); }
lab.on("wished", ({ view }) => { wish = view; pressed(view); }, false);          // before the answer is there
versus.addEventListener("change", () => lab.emit("look", { versus: versus.value }));
which.addEventListener("change", () => lab.emit("look", { which: which.value }));
unzoom.addEventListener("click", () => board.zoomed(null));
find(".back").addEventListener("click", () => lab.emit("back", {}));
lab.on("aside", (on) => { find(".back").hidden = !on; });
tableButton.addEventListener("click", () => {
  tableFrame.hidden = !tableFrame.hidden; tableButton.setAttribute("aria-expanded", String(!tableFrame.hidden)); table();
});
function table() {
  if (tableFrame.hidden || !data || !cells) return;
  const G = data.groups.length, head = make("tr", {}, make("th", { scope: "col" }, t("lab.map.block")));
  for (let s = 0; s < data.steps; s++) head.append(make("th", { scope: "col" }, String(s + 1)));
  const rows = data.blocks.map((name, b) => {
    const row = make("tr", {}, make("th", { scope: "row" }, String(name)));
    for (let s = 0; s < data.steps; s++) {
      const codes = Array.from(cells.subarray((b * data.steps + s) * G, (b * data.steps + s + 1) * G));
      row.append(make("td", {}, codes[0] === 1 ? "–" : codes.map(word).join(" ")));
    }
    return row;
  });
  tableFrame.replaceChildren(make("table", {}, make("caption", {}, make("span", {}, t("lab.map.caption", { groups: data.groups.join(", "), steps: data.steps }))), make("thead", {}, head), make("tbody", {}, ...rows)));
}
function headings() {
  labels();
  pressed(wish ?? data?.view ?? "decision");
  versus.parentElement.hidden = (data?.versus ?? []).length < 2;
  choices(versus, (data?.versus ?? ["draft"]).map((k) => [k, t(`lab.versus.${k}`)]), data?.against ?? "draft");
  which.parentElement.hidden = (data?.whiches ?? []).length < 2;
  choices(which, (data?.whiches ?? []).map((k) => [k, k]), data?.which);
  legend.replaceChildren(...(data?.legend ?? []).map(([key, colour, kind]) =>
    make("li", {}, make("i", { class: kind, style: kind === "outline" || kind === "dotted" ? `border-color:${themed(colour)}` : `background:${themed(colour)}` }), t(key))));
  if (["decision", "outliers", "verdict"].includes(data?.view) && data.groups.length > 1 && data.blocks.length && frameNode.clientWidth && levelNow() === "fine") {
    legend.append(make("li", { class: "inside" }, t(data.groups.length === 4 ? "lab.map.inside_four" : "lab.map.inside"), make("span", { class: "tiles", style: `grid-template-columns:repeat(${Math.ceil(data.groups.length / 2)},auto)` }, ...data.groups.map((name) => make("b", {}, name)))));
  }
  if (data?.scale) legend.append(make("li", { class: "scale" }, "0", make("i", { class: "ramp", style: `background:linear-gradient(90deg,${props.ramp.map(themed).join(",")})` }), data.scale));
  note.textContent = data?.note ?? ""; note.hidden = !note.textContent;
  table();
}
lab.on("map", (next) => {
  wish = null;
  const other = !data || data.steps !== next.steps || data.blocks.length !== next.blocks.length;
  data = { ...next, fine: next.fine.map(unpacked), coarse: next.coarse.map(unpacked), over: next.over.map(unpacked) };
  if (other) { cursor = pinned = null; column = null; range = null; unzoom.hidden = true; }
  cells = bytes(next.cells); data.reasons.decoded = bytes(next.reasons.codes);
  if (!pinned && next.suggest) { cursor = pinned = { block: next.suggest[0], step: next.suggest[1] }; }
  // While a knob moves, only what changed is built again, and the pinned cell is explained once the knob rests.
  const around = JSON.stringify([next.view, next.versus, next.against, next.whiches, next.which, next.legend, next.scale, next.note, next.groups, next.blocks.length]);
  if (around !== framed) { framed = around; headings(); } else table();
  redraw();
  clearTimeout(resting);
  if (pinned) resting = setTimeout(() => explain(), 120);
});
lab.on("look", () => clearTimeout(resting), false);         // it moves on: explaining now would slow the next map
lab.on("unpin", () => { pinned = cursor = null; column = null; redraw(); }, false);
lab.on("step", (event) => { if (event.from !== "map") { column = event.step - 1; redraw(); } }, false);
lab.on("lang", headings);
new MutationObserver(() => { headings(); redraw(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
headings();
