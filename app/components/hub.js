// The one wire between page and server. Quick questions go straight to server functions (only the newest counts);
// a run streams through Gradio's queue and arrives as the property `event`.
const state = lab.state;
lab.texts = props.texts; lab.server = server; lab.models = props.models;
const query = new URLSearchParams(location.search);
const wished = (query.get("lang") || (navigator.languages || []).join(",")).toLowerCase();
const speak = (wish) => wish.split(",").map((w) => (w.trim().startsWith("zh") ? "zh-CN" : w.trim().startsWith("en") ? "en" : "")).find(Boolean) || "en";
Object.assign(state, { view: "decision", versus: "draft", policy: null, preset: null, source: props.source, mode: "race", ...lab.state });
state.sid ||= props.sid || "";

lab.call = async (name, extra = {}) => {
  try {
    const answer = await server[name]({ sid: state.sid, lang: lab.lang, ...extra });
    if (answer?.error) { lab.say(answer.error, "bad"); return null; }
    return answer;
  } catch { lab.say(t("lab.status.unreachable"), "bad"); return null; }
};
let flying = false, again = false, asked = 0;
async function look(fields = {}) {
  Object.assign(state, fields);
  if (!state.source) return;                      // nothing has been recorded or run yet
  again = true;
  if (flying) return;
  flying = true;
  try {
    while (again) {
      again = false;
      const { view, versus, policy, preset, source, which } = state;
      const answer = await lab.call("look", { view, versus, policy, preset, source, which, undo: Boolean(state.undo) });
      state.undo = false;
      if (answer && again) { lab.emit("map", { ...answer.map, id: ++asked }); lab.emit("net", answer.net); }   // a newer wish is waiting: its settings stay
      else if (answer) take(answer);
    }
  } finally { flying = false; }
}
function take(answer) {
  state.policy = answer.policy; state.preset = answer.preset; state.source = answer.source; state.which = answer.map.which;
  state.view = answer.map.view; state.versus = answer.map.against;
  lab.emit("map", { ...answer.map, id: ++asked });
  lab.emit("knobs", answer); lab.emit("net", answer.net); lab.emit("source", answer.about);
  element.dataset.looked = String(asked);
}
lab.on("look", (fields) => look(fields), false);
lab.setLanguage = (lang) => {
  lab.lang = lang; document.documentElement.lang = lang;
  lab.emit("lang", lang);
};
function busy(on) { lab.busy = on; lab.emit("busy", on); }
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
lab.on("halt", async () => { lab.emit("stopping", true); lab.say(t("lab.status.stopping")); await lab.call("stop"); }, false);
// A run that the server never answers (a lost connection) must not lock the page for ever.
let heard = 0;
function watchdog() {
  heard = performance.now();
  const timer = setInterval(async () => {
    if (!lab.busy) return clearInterval(timer);
    if (performance.now() - heard < 20000) return;
    const answer = await lab.call("alive");
    heard = performance.now();
    if (answer && !answer.running) { clearInterval(timer); busy(false); lab.say(t("lab.status.lost"), "bad"); }
  }, 5000);
}
watch("event", () => {
  const event = props.event;
  if (!event || (event.id && event.id !== state.runId)) return;
  heard = performance.now();
  if (event.status) lab.say(event.status.sentence, event.status.tone);
  if (event.race) lab.emit("race", event.race);
  if (event.map) { lab.emit("map", { ...event.map, id: ++asked }); }
  if (event.net) lab.emit("net", event.net);
  if (event.look) { Object.assign(state, { source: event.look.source, versus: "draft" }); take(event.look); }
  if (event.over) { lab.emit("stopping", false); busy(false); }
});
watch("sid", () => { state.sid = props.sid; if (state.shared) { const fields = state.shared; state.shared = null; look(fields); } });
function open(source) { return lab.call("open", { source }).then((answer) => { if (answer) { if (answer.race) lab.emit("race", answer.race); lab.emit("source", answer.look.about); take(answer.look); lab.emit("unpin", {}); } return answer; }); }
lab.open = open;
function shared() {
  try {
    const text = query.get("cfg");
    if (!text) return null;
    const cfg = JSON.parse(text);
    return { policy: cfg.policy ?? null, preset: cfg.preset ?? null, source: cfg.source ?? state.source };
  } catch { lab.say(t("lab.status.badlink"), "bad"); return null; }
}
lab.link = () => {
  const url = new URL(location.href);
  url.search = "";
  url.searchParams.set("cfg", JSON.stringify({ source: state.source, ...(state.preset ? { preset: state.preset } : { policy: state.policy }) }));
  if (lab.lang !== "en") url.searchParams.set("lang", lab.lang);
  return url.toString();
};
lab.setLanguage(speak(wished));
if (props.race) lab.emit("race", props.race);
look(shared() ?? {});
lab.on("busy", async (on) => { const found = !on && (await lab.call("machine")); if (found) lab.emit("machine", found); }, false);
lab.on("lang", () => { if (element.dataset.looked) look(); }, false);
lab.emit("ready", true);
setTimeout(() => lab.call("warm"), 4000);        // after the first paint, so that importing the engine does not slow it
