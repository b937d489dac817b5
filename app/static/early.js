// Runs while the page's head is read: the first race's pictures are decoded beside Gradio's scripts, not after them.
// As bitmaps, which a canvas draws at once; an <img> of eight million pixels would be decoded again for the first frame.
window.lab6early = {};
for (const { props } of window.gradio_config?.components ?? []) {
  if (props?.elem_id !== "lab-hub") continue;
  const root = (window.gradio_config.root || "").replace(/\/$/, "");
  for (const pane of Object.values(props.props?.race?.panes ?? {})) {
    for (const { path } of [pane.sheet, pane.final]) {
      const file = `${root}/gradio_api/file=${path.split("/").map(encodeURIComponent).join("/")}`;
      window.lab6early[path] = fetch(file).then((found) => found.blob()).then(createImageBitmap);
      window.lab6early[path].catch(() => {});
    }
  }
}
