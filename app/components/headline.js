// What it comes down to, right above the map: of a run what got cheaper and the price, of a draft what would change.
const lead = find(".lead"), draft = find(".draft"), line = find(".draft-line");
lab.on("net", (net) => { lead.textContent = net.lead || ""; lead.hidden = !net.lead; });
lab.on("knobs", (next) => { draft.hidden = !next.draft; line.textContent = next.draft ?? ""; });
find(".run-draft").addEventListener("click", () => lab.emit("go", { draft: true }));
find(".undo").addEventListener("click", () => lab.emit("look", { preset: null, policy: null, undo: true }));
lab.on("busy", (busy) => { find(".run-draft").disabled = busy; });
// On a phone the Run button stays at the foot of the screen; it makes way while the draft's own buttons are seen.
new IntersectionObserver((seen) => lab.emit("draft_seen", seen.at(-1).isIntersecting)).observe(find(".draft-do"));
lab.on("lang", labels);
labels();
