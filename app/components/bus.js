// Shared by every part of the page: one small message bus, texts, and calls to the server where only the newest counts.
const lab = (window.lab6 ??= (() => {
  const heard = {};
  const last = {};
  const self = {
    texts: {}, lang: "en", server: null, state: {}, busy: false,
    on(name, hear, replay = true) {
      (heard[name] ??= new Set()).add(hear);
      if (replay && name in last) hear(last[name]);
    },
    emit(name, data) {
      last[name] = data;
      for (const hear of heard[name] || []) {
        try { hear(data); } catch (error) { console.error(name, error); }
      }
    },
    t(key, values = {}) {
      const template = (self.texts[self.lang] || {})[key] ?? (self.texts.en || {})[key] ?? "";
      // {n}, or by number {n:one step|# steps}
      return template.replace(/\{(\w+)(?::([^|{}]*)\|([^{}]*))?\}/g, (whole, name, one, many) => {
        const value = name in values ? String(values[name]) : null;
        return value === null ? whole : many == null ? value : (value.replace("≈ ", "") === "1" ? one : many).replaceAll("#", value);
      });
    },
    sentences(...parts) { return parts.filter(Boolean).join(self.lang === "zh-CN" ? "" : " "); },     // Chinese puts no blank between them
    say(sentence, tone = "info") { self.emit("status", { sentence, tone }); },
    root() { return (window.gradio_config?.root || "").replace(/\/$/, ""); },
    file(path) { return self.root() + "/gradio_api/file=" + path.split("/").map(encodeURIComponent).join("/"); },
  };
  return self;
})());
const t = lab.t;
const find = (selector) => element.querySelector(selector);
const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
};
// Options anew only where they differ: a list that is open under the visitor's hand would close.
const choices = (select, entries, value) => {
  const drawn = JSON.stringify(entries);
  if (select.drawn !== drawn) select.replaceChildren(...entries.map(([key, label]) => make("option", { value: key }, label)));
  select.drawn = drawn;
  if (value != null) select.value = value;
};
const labels = () => {
  for (const node of element.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of element.querySelectorAll("[data-label]")) node.setAttribute("aria-label", t(node.dataset.label));
  for (const node of element.querySelectorAll("[data-title]")) node.title = t(node.dataset.title);
};
