// "Why is this cell like that?" A sentence for each of its colours, then why it computed; below, the numbers against
// their limits, the layers, real values. The card stands below the map, or beside the cell where that is out of sight.
const AWAY = 10, WIDEST = 540;
const MARGIN = 8;
// The part of the window that nothing covers: on a phone the Run button stands at its foot.
function room() {
  const view = window.visualViewport, top = (view?.offsetTop ?? 0) + MARGIN, foot = document.querySelector(".go-wrap");
  const covered = foot && getComputedStyle(foot).position === "fixed" && foot.clientHeight ? foot.getBoundingClientRect().top : Infinity;
  return { top, bottom: Math.min(top - 2 * MARGIN + (view?.height ?? innerHeight), covered - MARGIN), left: MARGIN, right: document.documentElement.clientWidth - MARGIN };
}
function rows(head, cells, label) {
  return make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...head.map((h) => make("th", { scope: "col" }, h)))),
    make("tbody", {}, ...cells.map((row) => make("tr", {}, ...row.map((c, i) => (i ? make("td", {}, c) : make("th", { scope: "row" }, c)))))));
}
function ruler(sample) {
  const w = 100 / sample.values.length, top = Math.max(...sample.values.map(Math.abs)) || 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 40"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("class", "ruler"); svg.setAttribute("aria-hidden", "true");
  const bar = (x, width, v, cls) => {
    const r = document.createElementNS("http://www.w3.org/2000/svg", "rect"), h = (Math.abs(v) / top) * 19;
    for (const [k, val] of Object.entries({ x, width, y: v >= 0 ? 20 - h : 20, height: Math.max(h, 0.3), class: cls })) r.setAttribute(k, val);
    svg.append(r);
  };
  sample.values.forEach((v, i) => { bar(i * w + w * 0.1, w * 0.26, v, "real"); bar(i * w + w * 0.37, w * 0.26, sample.nvfp4[i], "four"); bar(i * w + w * 0.64, w * 0.26, sample.int8[i], "eight"); });
  return svg;
}
// home: the place below the map; cell(pin): the pinned cell's rectangle in the window; leave(): give the map the focus.
function answers(home, cell, leave) {
  const card = home.querySelector(".explain"), body = card.querySelector(".body"), close = card.querySelector(".close");
  // Made once: a fold that is replaced between press and release loses its click, and the focus that is on it.
  const answer = make("div", { class: "answer" }), label = make("summary"), inside = make("div"), more = make("details", { class: "numbers" }, label, inside);
  const named = () => { label.textContent = t(more.open ? "lab.explain.no_numbers" : "lab.explain.numbers"); };
  // The label stays under the pointer: a taller card may end its column's stay in the window.
  let stood = 0;
  label.addEventListener("click", () => { stood = label.getBoundingClientRect().top; });
  more.addEventListener("toggle", () => { named(); if (afloat()) place(); else if (more.isConnected) scrollBy(0, label.getBoundingClientRect().top - stood); });
  let pin = null, turn = 0, fresh = false, asked = false;
  const afloat = () => card.classList.contains("afloat");
  function dock() {
    card.classList.remove("afloat"); card.removeAttribute("style"); home.style.minHeight = ""; close.hidden = true;
  }
  function float() {
    const seen = room(), at = cell(pin), width = Math.min(WIDEST, seen.right - seen.left);
    if (!at || at.bottom < seen.top || at.top > seen.bottom) return dock();
    if (!afloat()) { home.style.minHeight = `${card.offsetHeight}px`; card.classList.add("afloat"); close.hidden = false; }
    Object.assign(card.style, { width: `${width}px`, maxHeight: "none" });
    const tall = card.offsetHeight, below = seen.bottom - at.bottom - AWAY, above = at.top - AWAY - seen.top, under = tall <= below || below >= above;
    const high = Math.min(tall, under ? below : above);
    Object.assign(card.style, {
      maxHeight: `${high}px`, top: `${under ? at.bottom + AWAY : at.top - AWAY - high}px`,
      left: `${Math.max(seen.left, Math.min((at.left + at.right - width) / 2, seen.right - width))}px`,
    });
  }
  function place() {
    if (!fresh) return afloat() && float();
    fresh = false; dock();
    const seen = room(), whole = card.querySelector(".answer").getBoundingClientRect();
    if (whole.top < seen.top || whole.bottom > seen.bottom) float();
  }
  function replace() { if (afloat() && !asked) { asked = true; requestAnimationFrame(() => { asked = false; if (afloat()) float(); }); } }
  window.addEventListener("scroll", replace, { passive: true });
  for (const frame of [window, window.visualViewport].filter(Boolean)) frame.addEventListener("resize", replace);
  close.addEventListener("click", () => { dock(); leave(); });
  // Only a focus that goes with the card goes back to the map: Escape may be pressed on a knob.
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !afloat()) return;
    const within = card.contains(document.activeElement);
    event.preventDefault(); event.stopPropagation(); dock();
    if (within) leave();
  }, true);
  function hint() { body.removeAttribute("aria-busy"); dock(); body.replaceChildren(make("h2", {}, t("lab.explain.title")), make("p", { class: "fine" }, t("lab.explain.hint"))); }
  function show(info) {
    const tables = [], reading = inside.contains(document.activeElement);
    named();
    if (info.numbers.length) tables.push(rows([t("lab.explain.quantity"), t("lab.explain.value"), t("lab.explain.limit")], info.numbers, t("lab.explain.numbers")));
    tables.push(rows([t("lab.explain.layer"), t("lab.explain.took"), t("lab.explain.why")], info.layers, t("lab.explain.layers")));
    if (info.sample) {
      const { sample } = info;
      tables.push(make("h3", {}, sample.title), ruler(sample), make("p", { class: "key fine" }, make("i", { class: "real" }), t("lab.sample.real"), make("i", { class: "four" }), "NVFP4", make("i", { class: "eight" }), "INT8"),
        make("div", { class: "scroll", tabindex: "0" }, rows(["", ...sample.values.map((_, i) => String(i + 1))], sample.rows, sample.title)), make("p", { class: "fine" }, sample.note));
    }
    const coloured = lab.state.view === "decision";          // the other views' colours mean something else
    const said = info.sentences.map((sentence, i) => make("p", { class: info.marks[i] && coloured ? "of-colour" : "" }, info.marks[i] && coloured ? make("i", { class: `mark ${info.marks[i]}`, "aria-hidden": "true" }) : null, make("span", {}, sentence.replace(/(\d) ([%×])/g, "$1\u00a0$2"))));
    answer.replaceChildren(make("h2", {}, info.title), ...said);
    inside.replaceChildren(...tables);
    more.hidden = !info.layers.length;
    if (!answer.isConnected) body.replaceChildren(answer, more);
    if (reading) (inside.querySelector(".scroll") ?? label).focus({ preventScroll: true });
    place();
  }
  async function ask() {
    if (!pin || !lab.server) return;
    const mine = ++turn;
    body.setAttribute("aria-busy", "true");          // the click is seen before its answer is there
    const info = await lab.insist("explain", { block: pin.block, step: pin.step, source: lab.state.source, policy: lab.state.policy, which: lab.state.which, live: lab.busy && !lab.state.aside }, () => mine !== turn);
    if (mine !== turn) return;
    body.removeAttribute("aria-busy");
    if (info) show(info);
  }
  lab.on("pin", (next) => { fresh ||= Boolean(next.clicked); pin = next; ask(); });
  lab.on("unpin", () => { pin = null; fresh = false; turn++; hint(); });
  lab.on("lang", () => (pin ? ask() : hint()));
  lab.on("place", dock);
  hint();
}
