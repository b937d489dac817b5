// The one wire between page and server. Quick questions go straight to server functions (only the newest counts);
// a run streams through Gradio's queue and arrives as the property `event`.
const state = lab.state;
lab.texts = props.texts; lab.server = server;
const query = new URLSearchParams(location.search);
const wished = (query.get("lang") || (navigator.languages || []).join(",")).toLowerCase();
const speak = (wish) => wish.split(",").map((w) => (w.trim().startsWith("zh") ? "zh-CN" : w.trim().startsWith("en") ? "en" : "")).find(Boolean) || "en";
Object.assign(state, { view: "decision", versus: "draft", policy: null, preset: null, source: props.source, mode: "race", ...lab.state });
state.sid ||= props.sid || "";

// What the first answer moves down the page is not shown before it: a button that moves between press and release is
// not clicked. The place knows by its class.
const waiting = (document.getElementById("place-lab") ?? document.body).classList;
function arrived() { waiting.remove("awaiting"); }
waiting.toggle("awaiting", Boolean(state.source));
// A question that is never settled counts as lost after a while; what takes its time (a model, a file) has longer. A browser
// has six connections to one server: while three questions hang, no other is sent after them.
const PATIENCE = 30000, LONG = { load: Infinity, take: 120000, opened: 120000, fits: 120000 }, MOST_HANGING = 3;         // ms
let hanging = 0;
function patiently(name, ask) {
  return new Promise((done) => {
    if (hanging >= MOST_HANGING) return done(undefined);
    let late = false;
    const most = LONG[name] ?? PATIENCE, timer = most < Infinity ? setTimeout(() => { late = true; hanging++; done(undefined); }, most) : 0;
    const settled = (answer) => { clearTimeout(timer); if (late) { hanging--; wake(); } done(answer); };
    (async () => server[name](ask))().then(settled, () => settled(undefined));
  });
}
// The answer; null where the wish was refused, undefined where the server could not be reached (Gradio gives undefined
// then and throws nothing). Both have been said.
let cut = "", said = "";
lab.on("status", ({ sentence }) => { said = sentence; }, false);
lab.call = async (name, extra = {}) => {
  const answer = await patiently(name, { sid: state.sid, lang: lab.lang, ...extra });
  if (!answer) { arrived(); cut = t("lab.status.unreachable"); if (said !== cut) lab.say(cut, "bad"); return undefined; }
  if (cut && said === cut) lab.say("");
  cut = "";
  if (answer.error) { arrived(); lab.say(answer.error, "bad"); return null; }
  return answer;
};
// What was clicked is kept and done as soon as the server answers, unless it is `moot` by then. In a tab or a place that is
// not looked at nobody waits for it: a few tries, then none until it is looked at again.
const PAUSE = 500, LONGEST_PAUSE = 8000, UNSEEN_TRIES = 6;         // ms, ms
const resting = new Set();
const wake = () => resting.forEach((go) => go());
const unseen = () => document.hidden || waiting.contains("away");
const rest = (lost) => new Promise((done) => {
  const timer = setTimeout(() => (unseen() && lost >= UNSEEN_TRIES) || go(), Math.min(LONGEST_PAUSE, PAUSE * 2 ** lost)), go = () => { clearTimeout(timer); resting.delete(go); done(); };
  resting.add(go);
});
const seen = () => { if (!unseen()) wake(); };
document.addEventListener("visibilitychange", seen);
lab.on("place", seen, false);
lab.insist = async (name, extra = {}, moot = () => false) => {
  for (let lost = 0; ; lost++) {
    const answer = await lab.call(name, extra);
    if (name === "explain") arrived();
    if (answer !== undefined || moot()) return answer;
    await rest(lost);
    if (moot()) return undefined;
  }
};
let flying = false, again = false, asked = 0;
// Gives the answer; null where the wish was refused (the page then stands where it stood), undefined where none is due:
// nothing has been recorded or run yet, or a look that is under way takes the wish along.
// Where another run has come to be shown meanwhile, the answer is about the one before, and is asked again.
let shown = null, arrivals = 0, meanwhile = null;
async function look(fields = {}) {
  if (meanwhile) Object.assign(meanwhile, fields);         // a run is being opened: it is asked the same once it is there
  Object.assign(state, "preset" in fields || "policy" in fields ? { undo: false } : {}, fields);      // the newest wish counts
  if (!state.source) return undefined;
  again = true;
  lab.emit("wished", { view: state.view, preset: state.preset });
  if (flying) { wake(); return undefined; }
  flying = true;
  let found = null, lost = 0;
  try {
    while (again) {
      again = false;
      const { view, versus, policy, preset, source, which } = state, before = arrivals;
      const answer = await lab.call("look", { view, versus, policy, preset, source, which, undo: Boolean(state.undo) });
      if (before !== arrivals) { again = true; continue; }
      if (answer === undefined) {                  // not reached: the wish, or a newer one, is kept
        if (!again) await rest(lost++);
        again = true;
        continue;
      }
      state.undo = false; lost = 0;
      found = answer;
      if (answer && again) draw(answer);           // a newer wish is waiting: its settings stay
      else if (answer) take(answer);
      else if (!again && shown) { settle(shown); lab.emit("wished", { view: state.view, preset: state.preset }); lab.emit("knobs", shown); }
    }
  } finally { flying = false; }
  return found;
}
// While a run is going its events draw the map, until the visitor looks at something else: then the map is theirs, and
// the run's newest one waits for them to come back or for the run to end.
let newest = {};
function aside(on) { state.aside = on; lab.emit("aside", on); }
function draw({ map, net }) {
  if (map) lab.emit("map", { ...map, id: ++asked });
  if (net) lab.emit("net", net);
}
lab.on("back", () => { aside(false); draw(newest); }, false);
function settle({ policy, preset, source, map, draft }) {
  Object.assign(state, { policy, preset, source, which: map.which, view: map.view, versus: map.against, draft: Boolean(draft) });
}
function came(answer) { arrivals++; take(answer); }          // of a run that is not the one before
function take(answer) {
  settle(answer);
  if (!shown) setTimeout(arrived, 1000);           // where no cell is explained
  shown = answer;
  if (!lab.busy || state.aside || !newest.map) draw(answer);
  lab.emit("knobs", answer); lab.emit("source", answer.about);
  element.dataset.looked = String(asked);
}
lab.on("look", (fields) => { if (lab.busy && !state.aside) aside(true); look(fields); }, false);
lab.setLanguage = (lang) => {
  lab.lang = lang; document.documentElement.lang = lang;
  lab.emit("lang", lang);
};
function busy(on) { lab.busy = on; aside(false); newest = {}; lab.emit("busy", on); }
let ticket = 0;
lab.on("go", (how) => {
  if (lab.busy) return;
  busy(true); lab.emit("unpin", {}); lab.say(t("lab.status.starting"));
  state.runId = `${Date.now()}-${++ticket}`;
  const { sid, policy, preset, mode, steps, guidance, height, width, frames, source } = state;
  const { prompt, seed, negative, model } = lab.request();
  trigger("run", { id: state.runId, sid, lang: lab.lang, policy, preset, mode: how?.mode ?? mode, steps, guidance, height, width, frames, source, prompt, seed, negative, model, probe: Boolean(how?.probe) });
  watchdog();
}, false);
lab.on("halt", async () => { lab.emit("stopping", true); lab.say(t("lab.status.stopping")); await lab.insist("stop", { id: state.runId }, () => !lab.busy); }, false);
// A run that the server never answers (a lost connection) must not lock the page for ever.
let heard = 0;
function watchdog() {
  heard = performance.now();
  const timer = setInterval(async () => {
    if (!lab.busy) return clearInterval(timer);
    if (performance.now() - heard < 20000) return;
    const answer = await lab.call("alive");
    heard = performance.now();
    if (answer && !answer.running) { clearInterval(timer); busy(false); look(); lab.say(t("lab.status.lost"), "bad"); }
  }, 5000);
}
// The last event of a run can arrive twice; by the second time what is on the page is the visitor's again.
let past = "";
watch("event", () => {
  const event = props.event;
  if (!event || (event.id && (event.id !== state.runId || event.id === past))) return;
  heard = performance.now();
  if (event.status) lab.say(event.status.sentence, event.status.tone);
  if (event.race) lab.emit("race", event.race);
  if (event.map || event.net) {
    newest = { map: event.map ?? newest.map, net: event.net ?? newest.net };
    if (!state.aside) draw(event);
  }
  if (event.look) ended(event.look);
  if (event.over) { past = event.id; lab.emit("stopping", false); busy(false); }
});
// The finished run is shown; a draft and a view that the visitor made meanwhile go on, now on this run.
function ended(answer) {
  const theirs = state.aside;
  aside(false); newest = {};
  if (!theirs) return came(answer);
  arrivals++;
  Object.assign(state, { source: answer.source, versus: "draft", which: answer.map.which });
  lab.emit("unpin", {});                           // the pinned cell was another run's
  look(state.draft ? {} : { policy: null, preset: null });
}
watch("sid", () => { state.sid = props.sid; });
// A run without pictures (a file) leaves no other run's beside its map. While a run is going, the panes are the run's.
let opening = 0;
async function open(source) {
  const mine = ++opening, newer = () => mine !== opening;
  if (lab.busy) aside(true);
  meanwhile = {};
  const answer = await lab.insist("open", { source }, newer);
  if (newer()) return undefined;                   // overtaken, not refused
  const late = meanwhile;
  meanwhile = null;
  if (!answer) return null;
  if (!lab.busy) lab.emit("race", answer.race ?? { run: source, panes: {}, note: ["lab.race.no_video", {}] });
  lab.emit("unpin", {}); lab.emit("source", answer.look.about); came(answer.look);
  if (Object.keys(late).length) look(late);
  return answer;
}
lab.open = open;
// What a link asks for. A run lives in the tab that made it; elsewhere its policy is shown on the page's own recording.
const RUN = ["steps", "guidance", "height", "width", "frames", "negative", "mode"];
function shared() {
  const text = query.get("cfg");
  if (!text) return null;
  const cfg = JSON.parse(text), kept = (names) => Object.fromEntries(names.filter((k) => cfg[k] != null).map((k) => [k, cfg[k]]));
  return { source: String(cfg.source ?? "").startsWith("recording:") ? cfg.source : props.source, run: kept(RUN), ask: kept(["prompt", "seed"]),
           fields: { policy: cfg.policy ?? null, preset: cfg.preset ?? null, ...kept(["view"]) } };
}
lab.link = () => {
  const url = new URL(location.href), { policy, preset, source, view } = state, { prompt, seed } = lab.request();
  const given = Object.fromEntries(RUN.filter((k) => state[k] != null && state[k] !== "").map((k) => [k, state[k]]));
  url.search = "";
  url.searchParams.set("cfg", JSON.stringify({ ...(source.startsWith("recording:") ? { source } : {}), ...(preset ? { preset } : { policy }), view, ...given, prompt, seed }));
  if (lab.lang !== "en") url.searchParams.set("lang", lab.lang);
  return url.toString();
};
async function arrive() {
  try {
    const wish = shared();
    if (!wish) return void look();
    Object.assign(state, wish.run);
    if (wish.source && wish.source !== props.source) {
      const opened = await open(wish.source);
      if (opened === undefined) return;
      if (!opened) throw new Error("source");
    }
    if (wish.ask.prompt != null || wish.ask.seed != null) lab.emit("ask", wish.ask);
    if ((await look(wish.fields)) !== null) return;
  } catch (error) { console.warn("the link", error); }
  if ((await look({ source: props.source, policy: null, preset: null, view: "decision" })) !== null) lab.say(t("lab.status.badlink"), "bad");
}
lab.setLanguage(speak(wished));
if (props.race) lab.emit("race", props.race);
arrive();
lab.on("busy", async (on) => { const found = !on && (await lab.call("machine")); if (found) lab.emit("machine", found); }, false);
lab.on("lang", () => { if (element.dataset.looked) look(); }, false);
lab.emit("ready", true);
setTimeout(() => lab.call("warm"), 4000);        // after the first paint, so that importing the engine does not slow it
