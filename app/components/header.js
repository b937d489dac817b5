// Title, the three places, what this machine means for the figures, theme and language.
const places = ["lab", "learn", "compare"], tabs = find(".tabs"), machine = find(".machine"), language = find(".language");
const query = new URLSearchParams(location.search);
let place = query.get("lesson") ? "learn" : places.includes(query.get("tab")) ? query.get("tab") : "lab";
function go(next, focus) {
  place = next;
  for (const name of places) document.getElementById(`place-${name}`)?.classList.toggle("away", name !== place);
  show();
  if (focus) tabs.querySelector('[aria-selected="true"]').focus();
  window.dispatchEvent(new Event("resize"));
  lab.emit("place", place);
}
lab.go = (next) => go(next);
// Made once: a tab that is replaced between press and release loses its click.
tabs.append(...places.map((name) => make("button", {
  type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `place-${name}`, onclick: () => go(name),
  onkeydown: (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) { event.preventDefault(); event.stopPropagation(); go(places[(places.indexOf(place) + by + 3) % 3], true); }
  } })));
function show() {
  labels();
  for (const tab of tabs.children) {
    const name = tab.id.slice(4);
    tab.setAttribute("aria-selected", String(name === place)); tab.tabIndex = name === place ? 0 : -1;
    tab.textContent = t(`common.${name}`);
  }
  language.textContent = lab.lang === "en" ? "中文" : "English";
  language.lang = lab.lang === "en" ? "zh-CN" : "en";
  machine.textContent = t(`lab.machine.${props.machine}`, props.machine_values || {}); machine.hidden = !machine.textContent;
}
language.addEventListener("click", () => {
  const next = lab.lang === "en" ? "zh-CN" : "en", url = new URL(location.href);
  url.searchParams.set("lang", next === "en" ? "en" : "zh");
  history.replaceState(null, "", url);
  lab.setLanguage(next);
});
find(".theme").addEventListener("click", () => { document.body.classList.toggle("dark"); });
lab.on("machine", (found) => { props.machine = found.machine; props.machine_values = found.machine_values; show(); });
lab.on("lang", show);
show(); go(place);
