// The map in small for when the map itself is out of sight while a knob moves: its cells, the draft's outlines, and what
// it comes down to. Above the knobs of a narrow page; on a wide one over the edge of the window that the knob leaves free.
const ROW = 7, MOST = 112, LINGER = 1500;
function strip(host) {
  const frame = host.querySelector(".strip-map"), board = chart(host.querySelector(".strip-plot")), line = host.querySelector(".strip-net"), undo = host.querySelector(".strip-undo");
  let data = null, asked = false, level = "", map = null;
  board.zoomable = false;
  // One fill a cell says its mean, tiles what its layers took: both maps draw the same of the two.
  const watch = new MutationObserver(() => { if (map.dataset.level !== level) redraw(); });
  function draw() {
    asked = false;
    if (!map?.isConnected && (map = document.querySelector("#lab-map [data-level]"))) watch.observe(map, { attributes: true, attributeFilter: ["data-level"] });
    level = map?.dataset.level ?? "fine";
    if (!data || !frame.clientWidth) return;
    frame.style.height = `${Math.min(MOST, ROW * (data.blocks.length || 12))}px`;
    board.draw(themed([...data[level], ...data.over].filter((trace) => trace.mode !== "markers").map(unpacked)), themed(data.layout), null, null, "");
    host.dataset.drawn = String(Number(host.dataset.drawn || 0) + 1);
  }
  function redraw() { if (!asked) { asked = true; requestAnimationFrame(draw); } }
  lab.on("map", (next) => { data = next; redraw(); });
  const show = (net) => { line.replaceChildren(...net.figures.filter((f) => f.brief).map((f) => make("span", { class: f.tone || "" }, make("b", {}, f.value), " ", f.brief))); };
  lab.on("net", show);
  lab.on("knobs", (next) => { undo.hidden = !next.draft; });
  undo.addEventListener("click", () => lab.emit("look", { preset: null, policy: null, undo: true }));
  const wide = matchMedia("(min-width: 901px)"), card = host.parentElement;
  let resting = 0;
  // Aloft it has a place and a width of its own; where it stands in the card the style sheet gives both.
  const down = () => { clearTimeout(resting); host.classList.remove("aloft", "low"); host.removeAttribute("style"); };
  const rest = () => { clearTimeout(resting); resting = setTimeout(() => (lab.dragging ? rest() : down()), LINGER); };
  card.addEventListener("input", (event) => {
    const map = document.querySelector("#lab-map .plot"), knob = event.target.closest(".knob");
    if (!wide.matches || !map || !knob) return down();
    const { top, bottom, height } = map.getBoundingClientRect(), seen = Math.min(bottom, innerHeight) - Math.max(top, 0), at = card.getBoundingClientRect();
    if (seen > height / 2) return down();
    Object.assign(host.style, { left: `${at.left}px`, width: `${at.width}px` });
    host.classList.add("aloft");
    host.classList.toggle("low", knob.getBoundingClientRect().top < host.offsetHeight + 16);
    rest();
  });
  window.addEventListener("scroll", () => { if (!lab.dragging) down(); }, { passive: true });
  wide.addEventListener("change", down);
  new ResizeObserver(redraw).observe(frame);
  new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
}
