// Recorded races, code, link, downloads, opening a file, and the model.
const code = find(".code"), runs = find(".runs-pick"), picker = find(".picker"), says = find(".model-says"), field = find("#model-in");
let about = null, name = props.model_name || "";
async function save(kind) {
  const found = await lab.call("take", { kind, policy: lab.state.policy, source: lab.state.source });
  if (!found) return;
  const raw = Uint8Array.from(atob(found.data), (c) => c.charCodeAt(0));
  const link = make("a", { href: URL.createObjectURL(new Blob([raw], { type: found.type })), download: found.name });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
async function copy(text, button) {
  try { await navigator.clipboard.writeText(text); }
  catch { const area = make("textarea", {}); area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove(); }
  const old = button.textContent; button.textContent = t("lab.take.copied");
  setTimeout(() => { button.textContent = old; }, 1500);
}
async function python() {
  if (code.hidden) return;
  const found = await lab.call("python", { policy: lab.state.policy, source: lab.state.source });
  if (found) code.querySelector("code").textContent = found.code;
}
for (const b of element.querySelectorAll("[data-file]")) b.addEventListener("click", () => save(b.dataset.file));
find('[data-do="python"]').addEventListener("click", (event) => { code.hidden = !code.hidden; event.target.setAttribute("aria-expanded", String(!code.hidden)); python(); });
find('[data-do="link"]').addEventListener("click", (event) => copy(lab.link(), event.target));
find(".copy").addEventListener("click", (event) => copy(code.querySelector("code").textContent, event.target));
find('[data-do="open"]').addEventListener("click", () => picker.click());
picker.addEventListener("change", async () => {
  const file = picker.files[0]; picker.value = "";
  if (!file) return;
  if (file.size > props.upload_bytes) return lab.say(t("lab.take.too_big", { limit: Math.round(props.upload_bytes / 1e6), size: Math.ceil(file.size / 1e6) }), "bad");
  try {
    const { path } = await upload(file);
    const found = await lab.call("opened", { path, name: file.name, source: lab.state.source });
    if (!found) return;
    if (found.source && !(await lab.open(found.source))) return;
    if (!found.source) lab.emit("look", found.policy ? { policy: found.policy, preset: "" } : { versus: found.versus });
    lab.say(t("lab.take.opened", { name: file.name }));
  } catch { lab.say(t("lab.status.unreachable"), "bad"); }
});
// A recording is named by its prompt's words where the page speaks another language than the prompt.
function titled(title, scene) {
  if (lab.lang === "en" || !scene) return title;
  const word = (name) => t(`lab.word.${name.replaceAll(" ", "_")}`) || name;
  return [...scene.objects.map((o) => t("lab.sentence.order").split("|").map((part) => (o[part] ? word(o[part]) : part)).join("")), word(scene.place)].join(" · ");
}
function heads() {
  labels();
  for (const b of element.querySelectorAll("[data-lane]")) {
    const of = about?.videos?.[b.dataset.lane];
    b.hidden = !of; b.textContent = of ? t("lab.take.video", { name: t(of) }) : "";
  }
  const own = [...(about?.own || [])];           // runs of this tab, and what is looked at where that is neither (a file)
  if (about && ![...own, ...props.recordings].some(([key]) => key === about.key)) own.unshift([about.key, about.title]);
  choices(runs, [...own.map(([key, title, policy]) => [key, policy ? `${title} · ${t(policy)}` : title]),
    ...props.recordings.map(([key, title, scene]) => [key, titled(title, scene)])], about?.key);
  runs.parentElement.hidden = !runs.options.length;
  find("#model-list").replaceChildren(...props.models.map((m) => make("option", { value: m })));
  find(".model-name").textContent = name || t("lab.model.embedded");
}
runs.addEventListener("change", () => lab.open(runs.value).then((answer) => { if (answer) lab.emit("ask", answer.ask); }));
find(".check").addEventListener("click", async () => { const found = await lab.call("fits", { model: field.value }); if (found) says.textContent = found.sentence; });
find(".load").addEventListener("click", async () => {
  says.textContent = t("lab.status.loading");
  const poll = setInterval(async () => { const told = await lab.call("loading"); if (told?.sentence) says.textContent = told.sentence; }, 1000);
  const found = await lab.call("load", { model: field.value });
  clearInterval(poll);
  says.textContent = found ? found.sentence : "";
  if (found) { name = found.name; lab.emit("model", found); heads(); }
});
lab.on("source", (next) => { about = next; heads(); python(); });
lab.on("knobs", python);
lab.on("lang", heads);
heads();
