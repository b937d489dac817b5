// "Why is this cell like that?": two plain sentences, then the numbers against their limits, the layers, real values.
const body = find(".body"), coarse = matchMedia("(pointer: coarse)").matches;
let pin = null, turn = 0, open = false;
function hint() { body.replaceChildren(make("h2", {}, t("lab.explain.title")), make("p", { class: "fine" }, t("lab.explain.hint"))); }
function table(head, rows, label) {
  return make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...head.map((h) => make("th", { scope: "col" }, h)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((c, i) => (i ? make("td", {}, c) : make("th", { scope: "row" }, c)))))));
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
function show(info) {
  const more = make("details", { class: "numbers" }, make("summary", {}, t("lab.explain.numbers")));
  more.open = open;
  more.addEventListener("toggle", () => { open = more.open; });
  if (info.numbers.length) more.append(table([t("lab.explain.quantity"), t("lab.explain.value"), t("lab.explain.limit")], info.numbers, t("lab.explain.numbers")));
  more.append(table([t("lab.explain.layer"), t("lab.explain.took"), t("lab.explain.why")], info.layers, t("lab.explain.layers")));
  if (info.sample) {
    const { sample } = info;
    more.append(make("h3", {}, sample.title), ruler(sample), make("p", { class: "key fine" }, make("i", { class: "real" }), t("lab.sample.real"), make("i", { class: "four" }), "NVFP4", make("i", { class: "eight" }), "INT8"),
      make("div", { class: "scroll", tabindex: "0" }, table(["", ...sample.values.map((_, i) => String(i + 1))], sample.rows, sample.title)), make("p", { class: "fine" }, sample.note));
  }
  body.replaceChildren(make("h2", {}, info.title, " ", make("small", {}, t(coarse ? "lab.explain.tap" : "lab.explain.keys"))), ...info.sentences.map((s) => make("p", {}, s)), more);
}
async function ask() {
  if (!pin || !lab.server) return;
  const mine = ++turn;
  const info = await lab.call("explain", { ...pin, source: lab.state.source, policy: lab.state.policy, which: lab.state.which, live: lab.busy && !lab.state.aside });
  if (mine === turn && info) show(info);
}
lab.on("pin", (next) => { pin = next; ask(); });
lab.on("unpin", () => { pin = null; turn++; hint(); });
lab.on("lang", () => (pin ? ask() : hint()));
hint();
