// Figures come in the light page's colours; `twins` maps each to its dark one.
const dark = () => document.body.classList.contains("dark") || document.documentElement.classList.contains("dark");
function themed(value, twins = props.dark) {
  if (!dark()) return value;
  if (typeof value === "string") return twins[value] ?? value;
  if (Array.isArray(value)) return value.map((item) => themed(item, twins));
  if (value && typeof value === "object" && !ArrayBuffer.isView(value)) {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, k === "bdata" ? v : themed(v, twins)]));
  }
  return value;
}
