// Two clips on two canvases, driven by one clock and one frame counter. Canvases are never replaced or resized while
// they play, and a sheet is drawn only once it is decoded: so no frame is ever blank.
const SIZE = 384;
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const panes = {};
for (const key of ["a", "b"]) {
  const node = find(`[data-pane="${key}"]`);
  const canvas = node.querySelector("canvas");
  canvas.width = SIZE; canvas.height = SIZE;
  panes[key] = { key, node, canvas, ctx: canvas.getContext("2d"), sheets: new Map(), final: null, step: 0, total: 0,
                 seconds: 0, times: null, state: "idle", label: "", ticks: [] };
}
const scrub = find(".scrub"), play = find(".play"), stepLabel = find(".step-label"), divider = find(".divider");
let painted = "", late = false;
let fps = 8, playing = !still, frame = 0, lastTick = 0, carried = 0, run = null, mode = "idle", view = "side";
const there = () => Object.values(panes).filter((pane) => !pane.node.hidden);
const most = (what) => Math.max(0, ...there().map((pane) => pane[what]));
const looks = () => (there().length > 1 ? view : "side");          // one clip alone is compared with nothing
let fair = true, busy = false, follow = true, at = 0, recordedFrom = 0, speed = 1, split = 0.5, race = null, notes = [];
let held = null;           // when the race was stopped, on the page's clock; null while it runs or is over

function blank(pane) {
  const { ctx } = pane, paint = ctx.createLinearGradient(0, 0, 0, SIZE);
  paint.addColorStop(0, "#39405a"); paint.addColorStop(1, "#6d7690");
  ctx.fillStyle = paint; ctx.fillRect(0, 0, SIZE, SIZE);
}
async function decode(sheet) {
  const early = sheet.path && (await window.lab6early?.[sheet.path]?.catch(() => null));
  if (early) return { ...sheet, image: early };
  const image = new Image();
  image.decoding = "async";
  image.src = sheet.src ?? lab.file(sheet.path);
  await image.decode();
  return { ...sheet, image };
}
function reset(id) {
  run = id; follow = true; at = 0; race = held = null;
  for (const pane of Object.values(panes)) {
    Object.assign(pane, { sheets: new Map(), final: null, step: 0, total: 0, seconds: 0, times: null, state: "waiting", ticks: [], note: "" });
    ticks(pane);
  }
}
// the sheet that shows a pane at a step: the newest one not after it
function sheetAt(pane, step) {
  if (pane.sheets.recorded) {
    return step > 0 ? { ...pane.sheets.recorded, row: Math.min(step, pane.times.length) - 1 } : null;
  }
  for (let s = step; s > 0; s--) if (pane.sheets.has(s)) return pane.sheets.get(s);
  return null;
}
function shown(pane) {
  const done = pane.state === "done";
  if (follow) return done && pane.final ? pane.final : sheetAt(pane, pane.step);
  return at > pane.total && pane.final ? pane.final : sheetAt(pane, Math.min(at, pane.total));
}
function paint(ctx, sheet, clip = SIZE) {
  const index = frame % sheet.n, { w, h } = sheet;
  const scale = Math.min(SIZE / w, SIZE / h), dw = w * scale, dh = h * scale;
  if (dw < SIZE || dh < SIZE) { ctx.fillStyle = "#14161c"; ctx.fillRect(0, 0, clip, SIZE); }
  ctx.imageSmoothingQuality = "high";
  ctx.save();
  if (clip < SIZE) { ctx.beginPath(); ctx.rect(0, 0, clip, SIZE); ctx.clip(); }
  ctx.drawImage(sheet.image, index * w, (sheet.row || 0) * h, w, h, (SIZE - dw) / 2, (SIZE - dh) / 2, dw, dh);
  ctx.restore();
}
function draw() {
  const sheets = {}, how = looks();
  for (const pane of there()) {
    const sheet = (sheets[pane.key] = shown(pane)), kept = sheet ?? pane.old;      // until its first picture a pane keeps the clip before
    pane.node.classList.toggle("ended", Boolean(sheet) && sheet === pane.final);   // ticks belong to the finished clip
    if (kept) { paint(pane.ctx, kept); pane.old = kept; pane.canvas.dataset.shown = pane.step; }
  }
  const { ctx, canvas } = panes.b;
  if (!sheets.a || !sheets.b || how === "side") return;
  if (how === "wipe") {
    paint(ctx, sheets.a, SIZE * split);
    ctx.fillStyle = "#ffffff"; ctx.fillRect(SIZE * split - 1.5, 0, 3, SIZE);
  } else {
    ctx.globalCompositeOperation = "difference";
    paint(ctx, sheets.a);
    ctx.globalCompositeOperation = "lighter";       // adding the picture to itself twice: differences times four
    ctx.drawImage(canvas, 0, 0); ctx.drawImage(canvas, 0, 0);
    ctx.globalCompositeOperation = "source-over";
  }
}
function advance(now) {
  if (mode !== "recorded" || !race?.ready || held !== null) return;          // its clock starts once its pictures are there
  const time = ((now - recordedFrom) / 1000) * speed;
  let running = false;
  for (const pane of Object.values(panes)) {
    if (!pane.times || pane.state === "done") continue;
    let step = pane.step;
    while (step < pane.times.length && pane.times[step] <= time) step++;
    const over = time >= pane.whole;
    pane.seconds = Math.min(time, pane.whole);
    pane.step = step;
    pane.state = over ? "done" : step >= pane.total ? "decoding" : "running";
    running ||= !over;
    status(pane);
  }
  if (follow) scrubTo(most("step"));
  timed();
  if (!running && !race.over) { race.over = true; find(".again").hidden = false; }
}
function tick(now) {
  requestAnimationFrame(tick);
  if (!element.isConnected) return;
  const passed = Math.min(now - lastTick, 250); lastTick = now;
  if (playing) {
    carried += passed;
    const due = Math.floor((carried * fps) / 1000);
    if (due) { carried -= (due * 1000) / fps; frame += due; }
  }
  advance(now);
  // Eight pictures a second are enough: painting at the screen's rate would take the cores that the run needs.
  const wanted = [frame, looks(), split, follow, at, ...Object.values(panes).flatMap((p) => [p.step, p.state, p.sheets.size, !!p.sheets.recorded, !!p.final])].join();
  if (wanted === painted || document.hidden || !element.offsetParent) return;
  painted = wanted;
  draw();
}
function status(pane) {
  // A pane that stands at a chosen step says that step and its time; in a run that is under way, no step it has not had.
  const { node, total } = pane, step = follow ? pane.step : Math.min(at, mode === "live" ? pane.step : total);
  const seconds = follow ? pane.seconds : pane.times?.[step - 1], state = follow || pane.state === "stopped" ? pane.state : "";
  const name = pane.label ? t(pane.label[0], pane.label[1]) : "";
  node.querySelector(".name").textContent = name;
  const clock = total ? [`${Math.min(step, total)}/${total}`, ...(seconds == null ? [] : [`${seconds.toFixed(1)} s`])].join(" · ") : "";
  node.querySelector(".clock").textContent = clock;
  const bar = node.querySelector(".bar");
  bar.firstElementChild.style.width = `${total ? (100 * step) / total : 0}%`;
  bar.setAttribute("aria-valuenow", step); bar.setAttribute("aria-valuemax", total || 1);
  bar.setAttribute("aria-label", t("lab.race.progress", { name }));
  const badge = node.querySelector(".badge");
  const word = { waiting: t("lab.race.waiting"), decoding: t("lab.race.decoding"), stopped: t("lab.race.stopped") }[state];
  badge.textContent = pane.note || word || ""; badge.hidden = !badge.textContent;
}
// What the clocks say, in words: at a chosen step the time until then, at the end how the ratio follows from the two.
const secs = (value, whole) => value.toFixed(whole < 10 ? 2 : 1);
function told(behind) {
  const { a, b } = panes, steps = [a, b].map((pane) => pane.times?.[Math.min(at, pane.total) - 1]);
  const wholes = [a, b].map((pane) => (mode === "recorded" ? pane.whole : pane.state === "done" ? pane.seconds : null));
  const known = wholes.every((seconds) => seconds > 0), other = a.label?.[0] === "lab.race.fp16" ? t("lab.preset.fp16") : a.label && t(...a.label);
  const here = !follow && steps.every((seconds) => seconds > 0) ? t("lab.race.at_step", { step: Math.min(at, Math.max(a.total, b.total)), a: secs(steps[0], wholes[0]), b: secs(steps[1], wholes[1]) }) : "";
  if (follow && there().some((pane) => pane.state === "running" || pane.state === "waiting")) return fair && !there().some((pane) => pane.note) ? lab.sentences(t("lab.race.clocks"), behind) : "";
  if (!known) return here;
  const faster = wholes[0] >= wholes[1], [long, short] = faster ? wholes : [...wholes].reverse();
  const whole = t(!fair ? "lab.race.whole_unfair" : busy ? "lab.race.whole_busy" : faster ? "lab.race.whole" : "lab.race.whole_slower", { long: secs(long, long), short: secs(short, short), ratio: (long / short).toFixed(2), other });
  return lab.sentences(here, whole, here && steps[1] > steps[0] ? behind : "");
}
function timed() {
  const line = find(".times"), words = there().length > 1 ? told(late ? t("lab.race.behind", { name: t(...panes.b.label) }) : "") : "";
  if (line.textContent !== words) line.textContent = words;
}
function ticks(pane) {
  const list = pane.node.querySelector(".ticks");
  list.replaceChildren(...pane.ticks.map((tick) =>
    make("li", { class: tick.ok ? "yes" : "no" }, make("span", { "aria-hidden": "true" }, tick.ok ? "✓ " : "✗ "), t(`lab.word.${tick.word.replaceAll(" ", "_")}`) || tick.word,
         make("span", { class: "sr" }, tick.ok ? t("lab.race.right") : t("lab.race.wrong")))));
  find(".readback").hidden = !Object.values(panes).some((p) => p.ticks.length);
}
function scrubTo(step) {
  const total = most("total");
  scrub.max = String(total + 1); scrub.disabled = !total;
  scrub.value = String(follow && there().every((p) => p.state === "done") ? total + 1 : step);
  const value = Number(scrub.value);
  const words = value > total ? t("lab.race.finished") : t("lab.race.step", { step: value, total });
  if (stepLabel.textContent !== words) stepLabel.textContent = total ? words : "";
  scrub.setAttribute("aria-valuetext", words);
  timed();
}
function pick(step) {
  const end = step > most("total");
  if (!end) stop(); else if (mode === "live" && held !== null) resume(!still);
  follow = end; at = step;
  if (follow && mode === "recorded") { recordedFrom = -1e9; held = null; }      // the end of the slider is the end of the race
  scrubTo(step); Object.values(panes).forEach(status); draw();
}
// One button for all that moves: a race that stands, at a pause or at a chosen step, has its clips stand too, and "Play"
// lets both go on. A run cannot stand: its picture does, and goes on where the run then is.
const racing = () => (mode === "recorded" ? Boolean(race) && !race.over : there().some((pane) => !["idle", "done", "stopped"].includes(pane.state)));
function stop() {
  if (racing()) { held ??= performance.now(); playing = false; buttons(); }
}
function pause() {
  stop(); playing = false; buttons();
  if (held !== null && mode === "live") { follow = false; at = most("step"); }
}
function resume(moving = true) {
  const stood = held;
  held = null; playing = moving; buttons();
  if (stood === null) return;
  if (mode === "live") { follow = true; scrubTo(most("step")); Object.values(panes).forEach(status); }
  else if (follow) recordedFrom += performance.now() - stood;
  else from(Math.min(...there().map((pane) => pane.times?.[Math.min(at, pane.total) - 1] ?? 0)));
}
function buttons() {
  play.replaceChildren(make("span", { "aria-hidden": "true" }, playing ? "❚❚" : "▶"), " ", t(playing ? "lab.race.pause_word" : "lab.race.play_word"));
  play.title = t(playing ? "lab.race.pause" : "lab.race.play"); play.setAttribute("aria-label", play.title);
  for (const b of element.querySelectorAll("[data-view]")) {
    b.setAttribute("aria-pressed", String(b.dataset.view === looks()));
    b.disabled = b.dataset.view !== "side" && there().length < 2;
  }
  divider.hidden = looks() !== "wipe";
}
// Which panes this race has; one that goes takes its picture along.
function place(given) {
  for (const pane of Object.values(panes)) {
    if (!given[pane.key] && !pane.node.hidden) { pane.old = null; blank(pane); }
    pane.node.hidden = !given[pane.key];
  }
  find(".deck").hidden = !there().length;
  buttons();
}
async function recorded(data) {
  reset(data.run); mode = "recorded"; playing ||= !still; fps = data.fps; fair = data.fair !== false; busy = !!data.busy; speed = data.speed || 1; race = { over: false };
  const mine = race;
  place(data.panes);
  for (const [key, given] of Object.entries(data.panes)) {
    const pane = panes[key];
    Object.assign(pane, { label: given.label, total: given.times.length, times: given.times, whole: given.seconds, ticks: [] });
    status(pane); ticks(pane);
  }
  const { a, b } = data.panes, slow = (from) => b.times[2] - (from && b.times[0]) > a.times[2] - (from && a.times[0]);
  late = a?.label[0] === "lab.race.fp16" && b && slow(0) && slow(1) && b.seconds < a.seconds;      // the first steps compute everything
  notes = data.note ? [() => t(...data.note)] : []; noted();
  await Promise.all(Object.entries(data.panes).map(async ([key, given]) => {
    const pane = panes[key];
    const [steps, final] = await Promise.all([decode(given.sheet), decode(given.final)]);
    if (race !== mine) return;
    pane.sheets.recorded = steps; pane.final = final; pane.ticks = given.ticks || []; ticks(pane);
  }));
  if (race !== mine) return;
  const chosen = follow ? null : at;               // a step that was chosen before the pictures were there
  restart();
  if (chosen !== null) pick(chosen);
}
function noted() { find(".note").textContent = lab.sentences(...notes.map((note) => note())); }
// The race as it is after so many seconds.
function from(seconds) {
  recordedFrom = performance.now() - (1000 * seconds) / speed; follow = true; race.over = false; find(".again").hidden = true;
  for (const pane of there()) { pane.step = 0; pane.state = "running"; }
}
function restart() {
  // The first finished step is there at once: before it there is nothing to see.
  from(Math.min(...Object.values(panes).map((p) => p.times?.[0] ?? Infinity)));
  race.ready = true; held = null;
  if (still) recordedFrom -= 1e9;
  else if (!playing) { advance(performance.now() + 1); stop(); }      // a millisecond more than rounding can take from the first step
}
async function live(data) {
  if (data.run !== run) { reset(data.run); mode = "live"; late = false; playing ||= !still; find(".again").hidden = true; }
  fps = data.fps || fps; fair = data.fair !== false; busy = !!data.busy;
  notes = data.note ? [() => t(...data.note)] : []; noted();
  place(data.panes);
  for (const pane of there()) {
    const given = data.panes[pane.key];
    const { sheet, final, ...rest } = given;
    Object.assign(pane, rest);
    if (sheet) decode(sheet).then((ready) => { if (run === data.run) pane.sheets.set(sheet.step, ready); }).catch(() => {});
    if (final && !pane.final) decode(final).then((ready) => { if (run === data.run) pane.final = ready; }).catch(() => {});
    status(pane);
    if (given.ticks) ticks(pane);
  }
  if (follow) scrubTo(most("step"));
  timed();
}
scrub.addEventListener("input", () => { pick(Number(scrub.value)); lab.emit("step", { step: Number(scrub.value), from: "race" }); });
play.addEventListener("click", () => { if (playing) pause(); else resume(); });
find(".again").addEventListener("click", () => { if (race) { playing ||= !still; buttons(); restart(); } });
divider.addEventListener("input", () => { split = Number(divider.value) / 100; });
for (const b of element.querySelectorAll("[data-view]")) b.addEventListener("click", () => { view = b.dataset.view; buttons(); });
panes.b.canvas.addEventListener("pointermove", (event) => {
  if (looks() !== "wipe" || !(event.buttons || event.pointerType === "mouse")) return;
  const box = panes.b.canvas.getBoundingClientRect();
  split = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)); divider.value = String(split * 100);
});
// Until a draft has run, the right pane shows the run before it, so its ticks say nothing about the draft.
let draft = "";
function called() {
  const line = panes.b.node.querySelector(".call"), on = Boolean(draft) && !lab.busy;
  line.textContent = on ? t(draft) : ""; line.hidden = !on;
  panes.b.node.classList.toggle("stale", on);
}
lab.on("knobs", (next) => { draft = !next.draft ? "" : next.preset === "break" ? "lab.race.call_break" : "lab.race.call"; called(); });
lab.on("busy", called);
lab.on("step", (data) => { if (data.from !== "race") pick(data.step); }, false);
lab.on("race", (data) => (data.recorded ? recorded(data) : live(data)).catch((error) => lab.say(t("lab.race.broken"), "bad")));
lab.on("lang", () => { labels(); buttons(); noted(); Object.values(panes).forEach((p) => { status(p); ticks(p); }); called(); scrubTo(Number(scrub.value)); });
Object.values(panes).forEach(blank); labels(); buttons();
requestAnimationFrame(tick);
