// Three knobs on the histograms of the signals they cut. A bar changes colour at once; the map follows from the server.
const ORDER = ["error_threshold", "tdc_threshold", "outlier_threshold"];
const SHOWN = ["fp16", "w4a4", "w4a8", "sixbit", "break"];
const list = find(".knob-list"), presets = find(".presets"), grid = find(".advanced-grid");
const rows = {};
let look = null, policy = null, headed = "";

const shows = (name, value) => (name === "outlier_threshold" ? `${+value.toFixed(1)} ×` : `${+(100 * value).toFixed(1)} %`);
function row(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bars"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("aria-hidden", "true");
  const input = make("input", { type: "range", id: `knob-${name}`, "data-knob": name, "aria-describedby": `says-${name}` });
  const value = make("output", { for: `knob-${name}` }), label = make("label", { for: `knob-${name}`, "data-t": `lab.knob.${name}` });
  const says = make("p", { class: "fine says", id: `says-${name}` }), more = make("span", { class: "beyond" });
  const node = make("div", { class: `knob ${name}` }, make("div", { class: "knob-top" }, label, value), make("div", { class: "dial" }, svg, input),
    make("div", { class: "ends", "aria-hidden": "true" }, make("span", { "data-t": `lab.ends.${name}.low` }), more, make("span", { "data-t": `lab.ends.${name}.high` })), says);
  list.append(node);
  input.addEventListener("input", () => {
    const next = Number(input.value);
    paint(name, next);
    change({ [name]: next }, "");
  });
  return (rows[name] = { node, svg, input, value, says, more, bars: [] });
}
function paint(name, value) {
  const part = rows[name];
  part.value.textContent = shows(name, value);
  part.input.setAttribute("aria-valuetext", shows(name, value));
  const cut = ((value - part.low) / (part.high - part.low)) * part.bars.length;
  const edge = part.bars.findIndex((bar, i) => i + 0.5 >= cut);
  if (part.edge === edge && part.bars[0]?.hasAttribute("class")) return;
  part.edge = edge;
  part.bars.forEach((bar, i) => bar.setAttribute("class", edge < 0 || i < edge ? "below" : "above"));
}
function fill(info) {
  const part = rows[info.name] ?? row(info.name), n = info.heights.length, { input } = part;
  // A scale that changes under the pointer would carry the knob away: scale and bars wait until it is let go.
  const held = Boolean(part.drawn && lab.dragging && document.activeElement === input), drawn = [info.low, info.high, ...info.heights].join();
  if (!held && part.drawn !== drawn) {
    Object.assign(part, { drawn, low: info.low, high: info.high, edge: null });
    input.min = info.low; input.max = info.high; input.step = info.name === "outlier_threshold" ? 0.5 : 0.001;
    part.svg.setAttribute("viewBox", `0 0 ${n} 40`);
    part.bars = info.heights.map((h, i) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const tall = h > 0 ? Math.max(0.8, h * 40) : 0.25;
      for (const [k, v] of Object.entries({ x: i + 0.08, width: 0.84, y: 40 - tall, height: tall })) bar.setAttribute(k, v);
      return bar;
    });
    part.svg.replaceChildren(...part.bars);
  }
  if (!held) { input.value = info.value; paint(info.name, info.value); } else paint(info.name, Number(input.value));
  input.disabled = Boolean(info.off);
  part.node.classList.toggle("off", Boolean(info.off));
  part.says.textContent = info.says;
  part.more.textContent = info.beyond ? t("lab.ends.beyond", { count: info.beyond }) : ""; part.more.title = t("lab.ends.beyond.what");
}
element.addEventListener("pointerdown", () => { lab.dragging = true; });
for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => { if (lab.dragging) setTimeout(advanced); lab.dragging = false; });

function change(fields, preset) {
  policy = { ...policy, ...fields };
  lab.emit("look", { policy, preset });
}
// Made once: a button that is replaced between press and release loses its click.
const segments = SHOWN.map((name) => make("button", { type: "button", "data-preset": name, onclick: () => lab.emit("look", { preset: name, policy: null }) }));
const pick = make("select", { class: "more-presets", onchange: () => pick.value && lab.emit("look", { preset: pick.value, policy: null }) });
presets.append(...segments, pick);
let wish = null;           // a preset that was asked for and is not there yet
function pressed(preset) {
  for (const b of segments) b.setAttribute("aria-pressed", String(b.dataset.preset === preset));
  const other = [...pick.options].some((o) => o.value && o.value === preset);
  pick.value = other ? preset : ""; pick.classList.toggle("chosen", other);
}
function heads() {
  labels();
  const others = (look?.presets ?? []).filter((name) => !SHOWN.includes(name));
  for (const b of segments) { b.title = t(`lab.preset.${b.dataset.preset}.what`); b.textContent = t(`lab.preset.${b.dataset.preset}`); }
  choices(pick, [["", t("lab.presets.more")], ...others.map((name) => [name, t(`lab.preset.${name}`)])]);
  pick.setAttribute("aria-label", t("lab.presets.more")); pick.hidden = !others.length;
  pressed(wish ?? look?.preset);
  find(".preset-what").textContent = look ? t(`lab.preset.${look.preset || "own"}.what`) : "";
  advanced();
}
const FIELDS = [
  ["max_skips", 0, 6, 1], ["warmup_steps", 0, 20, 1], ["protect_last", 0, 20, 1],
  ["gap", ["linear", "sqrt", "none"]], ["resume", ["int8", "last_gamma"]], ["precision", ["dynamic", "nvfp4", "int8", "w4a16", "stock"]],
  ["weighting", ["none", "sensitivity"], "weigh."], ["purify_to", ["w4a16", "int8"]], ["extrapolation", 0, 1, 0.1], ["tdc", true], ["pdr", true],
];
const RUN = [["negative", ""], ["steps", 2, 200, 1], ["guidance", 1, 20, 0.5], ["height", 16, 1088, 16], ["width", 16, 1920, 16], ["frames", 1, 161, 4]];
function advanced() {
  if (!policy || !find(".advanced").open || grid.contains(document.activeElement) || (lab.dragging && grid.children.length)) return;
  const field = (name, spec, value, set) => {
    const id = `adv-${name}`;
    let control;
    if (spec[1] === true) control = make("input", { type: "checkbox", id, onchange: (e) => set(e.target.checked) }), (control.checked = Boolean(value));
    else if (Array.isArray(spec[1])) control = make("select", { id, onchange: (e) => set(e.target.value) }, ...spec[1].map((o) => make("option", { value: o, selected: o === value }, t(`lab.option.${spec[2] ?? ""}${o}`))));
    else if (spec[1] === "") control = make("input", { type: "text", id, maxlength: 2000, value: value ?? "", onchange: (e) => set(e.target.value) });
    else control = make("input", { type: "number", id, min: spec[1], max: spec[2], step: spec[3], value: value ?? "", placeholder: t("lab.advanced.default"), onchange: (e) => set(e.target.value === "" ? null : Number(e.target.value)) });
    return make("div", { class: "field" }, make("label", { for: id }, t(`lab.field.${name}`)), control, make("p", { class: "fine" }, t(`lab.field.${name}.what`)));
  };
  grid.replaceChildren(
    ...FIELDS.map((spec) => field(spec[0], spec, policy[spec[0]], (v) => v !== null && change({ [spec[0]]: v }, ""))),
    make("h3", {}, t("lab.advanced.run")),
    ...RUN.map((spec) => field(spec[0], spec, lab.state[spec[0]], (v) => { lab.state[spec[0]] = v; lab.emit("estimate", {}); })),
  );
}
lab.on("knobs", (next) => {
  look = next; policy = { ...next.policy }; wish = null;
  for (const name of ORDER) fill(next.knobs.find((k) => k.name === name));
  find(".band").textContent = lab.sentences(next.warning, next.band);
  find(".measure").hidden = !next.measure;
  const chosen = `${next.preset} ${next.presets}`;
  if (chosen !== headed) { headed = chosen; heads(); } else advanced();
});
lab.on("wished", ({ preset }) => { wish = preset; if (preset != null) pressed(preset); }, false);          // before the answer is there
find(".advanced").addEventListener("toggle", advanced);
find(".measure").addEventListener("click", () => lab.emit("go", { probe: true }));
lab.on("busy", (busy) => { find(".measure").disabled = busy; });
strip(find(".strip"));
lab.on("lang", heads);
heads();
