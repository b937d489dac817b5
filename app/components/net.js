// The figures that a policy comes down to; with a draft, each shows what it was.
const box = find("dl"), small = find("p.fine");
let latest = null;
function show() {
  labels();
  if (!latest) return;
  box.replaceChildren(...latest.figures.map((f) => make("div", { class: f.tone || "" },
    make("dd", {}, f.was && f.was !== f.value ? make("s", {}, make("span", { class: "sr" }, t("lab.net.was") + " "), f.was) : null, f.value), make("dt", {}, f.label))));
  small.textContent = latest.note || ""; small.hidden = !latest.note;
}
lab.on("net", (next) => { latest = next; show(); });
lab.on("lang", show);
labels();
