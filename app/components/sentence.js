// The prompt: drop-downs that can only say what the small model knows, or free text; and Run.
const words = find(".words"), run = find(".run"), stop = find(".stop"), seed = find(".seed-in"), free = find(".free"), modePick = find(".mode-pick");
const V = props.vocabulary;
let typed = !V, text = props.prompt || "", scene = V && JSON.parse(JSON.stringify(V.scene)), model = props.model, stopping = false, eta = null, draft = false, embedded = true;
seed.value = props.seed ?? 7;

const word = (name) => t(`lab.word.${name.replaceAll(" ", "_")}`) || name;
function pick(value, options, set, label) {
  return make("select", { "aria-label": t(label), onchange: (event) => { set(event.target.value); changed(); } },
    ...options.map((o) => make("option", { value: o, selected: o === value }, word(o))));
}
function thing(object, index) {
  const lead = make("span", { class: "lead" }), key = `lab.sentence.${index ? "and" : "a"}`;
  const count = () => { lead.textContent = t(`${key}.${object.shape}`) || t(key); };      // Chinese counts a star with a word of its own
  count();
  return [
    lead,
    ...t("lab.sentence.order").split("|").map((part) => (V[`${part}s`]            // as the language says it; the prompt stays English
      ? pick(object[part], V[`${part}s`], (v) => { object[part] = v; count(); }, `lab.sentence.${part}`) : make("span", { class: "lead" }, part))),
  ];
}
function prompt() {
  if (typed) return text;
  const things = scene.objects.map((o) => `a ${o.size} ${o.colour} ${o.shape} ${o.motion}`).join(" and ");
  return `${things} ${V.rooms.includes(scene.place) ? `in a ${scene.place} room` : `on a ${scene.place} background`}`;
}
function show() {
  labels();
  free.hidden = !V || !embedded; free.textContent = t(typed ? "lab.sentence.build" : "lab.sentence.free");
  find(".dice").hidden = typed;
  if (typed) {
    const area = make("textarea", { rows: 1, class: "free-text", maxlength: 4000, "aria-label": t("lab.sentence.prompt"), placeholder: t("lab.sentence.placeholder"), oninput: (e) => { text = e.target.value; changed(); } });
    area.value = text;
    words.replaceChildren(area);
  } else {
    const second = scene.objects.length > 1
      ? make("button", { type: "button", class: "chip second", onclick: () => { scene.objects.pop(); show(); changed(); } }, t("lab.sentence.less"))
      : make("button", { type: "button", class: "chip second", onclick: () => { const other = V.colours.find((c) => c !== scene.objects[0].colour); scene.objects.push({ size: "small", colour: other, shape: "circle", motion: "spins" }); show(); changed(); } }, t("lab.sentence.more"));
    words.replaceChildren(...scene.objects.flatMap(thing), second, make("span", { class: "lead" }, t("lab.sentence.in")),
      pick(scene.place, [...V.rooms, ...V.backgrounds], (v) => (scene.place = v), "lab.sentence.place"));
  }
  const modes = ["race", "cached", "sixbit"];
  modePick.replaceChildren(...modes.map((m) => make("option", { value: m, selected: m === (lab.state.mode || "race") }, t(`lab.mode.${m}`))));
  buttons();
}
function buttons() {
  const seconds = eta && eta.seconds;
  run.hidden = lab.busy; stop.hidden = !lab.busy; stop.disabled = stopping;
  stop.textContent = t(stopping ? "lab.run.stopping" : "lab.run.stop");
  run.textContent = seconds ? t(draft ? "lab.run.draft_about" : "lab.run.about", { seconds: seconds < 10 ? seconds.toFixed(0) : String(Math.round(seconds)) }) : t(draft ? "lab.run.draft" : "lab.run.run");
}
const hello = () => t(props.recorded ? "lab.status.hello" : "lab.status.hello_empty");
let waiting = 0;
function changed() { clearTimeout(waiting); waiting = setTimeout(estimate, 200); }
async function estimate() {
  const { mode, steps, policy, preset, source, height, width, frames, guidance } = lab.state;
  const answer = await lab.call("estimate", { mode, steps, policy, preset, source, prompt: prompt(), negative: lab.state.negative || "", seed: Number(seed.value), model, height, width, frames, guidance });
  if (answer) { eta = answer; buttons(); }
}
lab.request = () => ({ prompt: prompt(), seed: seed.value === "" ? null : Number(seed.value), model, negative: lab.state.negative || "" });
run.addEventListener("click", () => lab.emit("go", {}));
stop.addEventListener("click", () => lab.emit("halt", {}));
free.addEventListener("click", () => { text = typed ? text : prompt(); typed = !typed; show(); changed(); });
seed.addEventListener("input", changed);
modePick.addEventListener("change", () => { lab.state.mode = modePick.value; changed(); });
find(".dice").addEventListener("click", () => {
  const any = (list) => list[Math.floor(Math.random() * list.length)];
  const colours = [...V.colours].sort(() => Math.random() - 0.5);
  scene.objects.forEach((o, i) => Object.assign(o, { size: any(V.sizes), colour: colours[i], shape: any(V.shapes), motion: any(V.motions) }));
  scene.place = any([...V.rooms, ...V.rooms, ...V.backgrounds]);
  seed.value = String(Math.floor(Math.random() * 10000));
  show(); changed();
});
element.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); if (!lab.busy) lab.emit("go", {}); });
lab.on("busy", () => { stopping = stopping && lab.busy; buttons(); if (!lab.busy) changed(); });
lab.on("draft_seen", (on) => find(".go-wrap").classList.toggle("aside", on));
lab.on("knobs", (next) => { draft = Boolean(next.draft); buttons(); });
find(".start").addEventListener("click", (event) => { event.preventDefault(); lab.go("learn"); scrollTo(0, 0); });
lab.on("stopping", (on) => { stopping = on; buttons(); });
// The drop-downs that say a prompt, or null where they cannot.
function parsed(prompt) {
  const any = (list) => `(${list.join("|")})`, thing = `a ${any(V.sizes)} ${any(V.colours)} ${any(V.shapes)} ${any(V.motions)}`;
  const found = new RegExp(`^${thing}(?: and ${thing})? (?:in a ${any(V.rooms)} room|on a ${any(V.backgrounds)} background)$`).exec(String(prompt).trim().toLowerCase());
  if (!found) return null;
  const object = ([size, colour, shape, motion]) => ({ size, colour, shape, motion }), [, ...w] = found;
  return { objects: [object(w), ...(w[4] ? [object(w.slice(4))] : [])], place: w[8] ?? w[9] };
}
lab.on("ask", (given) => {
  if (given.prompt != null) { text = String(given.prompt); const read = V && embedded && parsed(text); if (read) scene = read; typed = !read; }
  if (given.seed != null) seed.value = String(given.seed);
  show(); changed();
});
lab.on("model", (given) => { model = given.name; embedded = given.embedded; typed = !embedded || !V; show(); changed(); }, false);
lab.on("estimate", changed, false);
lab.on("ready", changed);
lab.on("lang", show);
lab.on("status", ({ sentence, tone }) => { const line = find(".status"); line.textContent = sentence || hello(); line.dataset.tone = sentence ? tone : "idle"; });
lab.on("lang", () => { const line = find(".status"); if (!line.textContent || line.dataset.tone === "idle") { line.textContent = hello(); line.dataset.tone = "idle"; } });
show();
