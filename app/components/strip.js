// The map in small, above the knobs of a narrow page, where the map itself is out of sight while a knob moves: its cells,
// the draft's outlines, and what it comes down to.
const ROW = 7, MOST = 112;
function strip(host) {
  const frame = host.querySelector(".strip-map"), board = chart(host.querySelector(".strip-plot")), line = host.querySelector(".strip-net"), undo = host.querySelector(".strip-undo");
  let data = null, asked = false;
  board.zoomable = false;
  function draw() {
    asked = false;
    if (!data || !frame.clientWidth) return;
    frame.style.height = `${Math.min(MOST, ROW * (data.blocks.length || 12))}px`;
    board.draw(themed([...data.coarse, ...data.over].filter((trace) => trace.mode !== "markers")), themed(data.layout), null, null, "");
    host.dataset.drawn = String(Number(host.dataset.drawn || 0) + 1);
  }
  function redraw() { if (!asked) { asked = true; requestAnimationFrame(draw); } }
  lab.on("map", (next) => { data = { ...next, coarse: next.coarse.map(unpacked), over: next.over.map(unpacked) }; redraw(); });
  const show = (net) => { line.replaceChildren(...net.figures.filter((f) => f.brief).map((f) => make("span", { class: f.tone || "" }, make("b", {}, f.value), " ", f.brief))); };
  lab.on("net", show);
  lab.on("knobs", (next) => { undo.hidden = !next.draft; });
  undo.addEventListener("click", () => lab.emit("look", { preset: null, policy: null, undo: true }));
  new ResizeObserver(redraw).observe(frame);
  new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
