// A plotly figure of a map (heatmaps on given borders, lines, marks, text), painted on one canvas that is never replaced.
// Plotly itself is 4.5 MB of script: three seconds before the first map on two cores, and ten times as long per redraw.
const EDGE = { l: 42, r: 6, t: 4, b: 38 };
const KINDS = { u1: Uint8Array, f4: Float32Array };
const SHADES = 96;
function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);       // ten times as fast as Uint8Array.from with a function
  return out;
}
const plain = (value) => (value?.bdata ? new KINDS[value.dtype](bytes(value.bdata).buffer) : value);
// Typed arrays in place of base64, once per figure, whichever parts of the page draw it.
const figures = (lab.figures ??= new WeakMap());
function unpacked(trace) {
  if (!figures.has(trace)) figures.set(trace, { ...trace, ...Object.fromEntries(["x", "y", "z"].filter((k) => trace[k]).map((k) => [k, plain(trace[k])])), width: Number(trace.z?.shape?.split(",")[1] ?? 0) });
  return figures.get(trace);
}

function blend(scale, at) {
  const i = Math.max(1, scale.findIndex(([end], k) => k && at <= end)), [from, low] = scale[i - 1], [to, high] = scale[i];
  if (low === high || !(low[0] === "#" && high[0] === "#")) return low;
  const part = to > from ? (at - from) / (to - from) : 0, hex = (c, k) => parseInt(c.slice(1 + 2 * k, 3 + 2 * k), 16);
  return `rgb(${[0, 1, 2].map((k) => Math.round(hex(low, k) + (hex(high, k) - hex(low, k)) * part)).join()})`;
}
const clear = (colour) => colour === "rgba(0,0,0,0)";

function chart(host) {
  const canvas = make("canvas", { "aria-hidden": "true" }), band = make("div", { class: "band-box", hidden: true }), ctx = canvas.getContext("2d");
  host.replaceChildren(canvas, band);
  let view = null, wide = 0, high = 0;
  const self = { zoomed: () => {}, zoomable: true };
  const X = (v) => EDGE.l + ((v - view.x[0]) / (view.x[1] - view.x[0])) * (wide - EDGE.l - EDGE.r);
  const Y = (v) => EDGE.t + ((v - view.y[1]) / (view.y[0] - view.y[1])) * (high - EDGE.t - EDGE.b);
  const place = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const backX = (px) => view.x[0] + ((px - EDGE.l) / (wide - EDGE.l - EDGE.r)) * (view.x[1] - view.x[0]);
  const backY = (px) => view.y[1] + ((px - EDGE.t) / (high - EDGE.t - EDGE.b)) * (view.y[0] - view.y[1]);

  function heat({ x, y, z, width, zmin, zmax, colorscale, opacity = 1 }, dpr) {
    const snap = (v) => Math.round(v * dpr) / dpr, across = Array.from(x, (v) => snap(X(v))), down = Array.from(y, (v) => snap(Y(v))), fills = new Map();
    for (let i = 0; i < z.length; i++) {
      if (Number.isNaN(z[i])) continue;
      const shade = Math.round((SHADES * (Math.min(zmax, Math.max(zmin, z[i])) - zmin)) / (zmax - zmin)), kept = fills.get(shade);
      if (kept) kept.push(i); else fills.set(shade, [i]);
    }
    ctx.globalAlpha = opacity;
    for (const [shade, cells] of fills) {
      const colour = blend(colorscale, shade / SHADES);
      if (clear(colour)) continue;
      ctx.fillStyle = colour;
      for (const i of cells) {
        const c = i % width, r = (i - c) / width;
        ctx.fillRect(across[c], down[r], across[c + 1] - across[c], down[r + 1] - down[r]);
      }
    }
    ctx.globalAlpha = 1;
  }
  function line({ x, y, line: { color, width, dash } }) {
    ctx.strokeStyle = color; ctx.lineWidth = width; ctx.setLineDash(dash === "dot" ? [width * 1.4, width * 1.4] : []);
    ctx.beginPath();
    for (let i = 0, pen = false; i < x.length; i++) {
      if (Number.isNaN(x[i])) { pen = false; continue; }
      if (pen) ctx.lineTo(X(x[i]), Y(y[i])); else ctx.moveTo(X(x[i]), Y(y[i]));
      pen = true;
    }
    ctx.stroke(); ctx.setLineDash([]);
  }
  function marks({ x, y, marker: { size, color, line: rim } }) {
    ctx.fillStyle = color; ctx.strokeStyle = rim.color; ctx.lineWidth = rim.width;
    const h = size * 0.65;
    x.forEach((v, i) => { const px = X(v), py = Y(y[i]); ctx.beginPath(); ctx.moveTo(px, py - h); ctx.lineTo(px + h, py); ctx.lineTo(px, py + h); ctx.lineTo(px - h, py); ctx.closePath(); ctx.fill(); ctx.stroke(); });
  }
  function words({ x, y, text, textfont: { size, color } }, font) {
    ctx.fillStyle = color; ctx.font = `${size}px ${font}`; ctx.textAlign = "center"; ctx.textBaseline = "middle";
    text.forEach((word, i) => ctx.fillText(word, X(x[i]), Y(y[i])));
  }
  function axes({ xaxis, yaxis }, ink, font) {
    ctx.fillStyle = ink; ctx.font = `12px ${font}`;
    ctx.textAlign = "center"; ctx.textBaseline = "top";
    xaxis.tickvals?.forEach((v, i) => v >= view.x[0] && v <= view.x[1] && ctx.fillText(xaxis.ticktext[i], X(v), high - EDGE.b + 5));
    if (xaxis.title?.text) ctx.fillText(xaxis.title.text, (EDGE.l + wide - EDGE.r) / 2, high - 15);
    ctx.textAlign = "right"; ctx.textBaseline = "middle";
    yaxis.tickvals?.forEach((v, i) => v >= view.y[1] && v <= view.y[0] && ctx.fillText(yaxis.ticktext[i], EDGE.l - 5, Y(v)));
    if (!yaxis.title?.text) return;
    ctx.save(); ctx.translate(8, (EDGE.t + high - EDGE.b) / 2); ctx.rotate(-Math.PI / 2); ctx.textAlign = "center";
    ctx.fillText(yaxis.title.text, 0, 0); ctx.restore();
  }
  // traces: unpacked plotly traces, from the lowest up; range: {x, y} or null for the layout's own.
  self.draw = (traces, layout, range, column, accent) => {
    const dpr = window.devicePixelRatio || 1, style = getComputedStyle(host), font = style.fontFamily;
    wide = host.clientWidth; high = host.clientHeight;
    if (canvas.width !== Math.round(wide * dpr) || canvas.height !== Math.round(high * dpr)) {
      canvas.width = Math.round(wide * dpr); canvas.height = Math.round(high * dpr);
      Object.assign(canvas.style, { width: `${wide}px`, height: `${high}px` });
    }
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, wide, high);
    view = range ?? { x: layout.xaxis.range ?? [0, 1], y: layout.yaxis.range ?? [0, 1] };
    host.dataset.x = view.x.join();
    axes(layout, layout.font?.color ?? style.color, font);
    for (const note of layout.annotations ?? []) { ctx.textAlign = "center"; ctx.fillText(note.text, wide / 2, high / 2); }
    ctx.save();
    ctx.beginPath(); ctx.rect(EDGE.l, EDGE.t, wide - EDGE.l - EDGE.r, high - EDGE.t - EDGE.b); ctx.clip();
    if (traces.length) { ctx.fillStyle = layout.plot_bgcolor; ctx.fillRect(0, 0, wide, high); }
    for (const trace of traces) {
      if (trace.type === "heatmap") heat(trace, dpr);
      else if (trace.mode === "lines") line(trace);
      else if (trace.mode === "markers") marks(trace);
      else words(trace, font);
    }
    if (column != null) { ctx.strokeStyle = accent; ctx.lineWidth = 1.5; ctx.strokeRect(X(column - 0.5), EDGE.t, X(column + 0.5) - X(column - 0.5), high - EDGE.t - EDGE.b); }
    ctx.restore();
  };
  // Data coordinates under the pointer; null outside the picture.
  self.at = (event) => {
    if (!view) return null;
    const [px, py] = place(event);
    return px < EDGE.l || px > wide - EDGE.r || py < EDGE.t || py > high - EDGE.b ? null : { x: backX(px), y: backY(py) };
  };
  // A drag draws a box and zooms into it; one that is mostly sideways or mostly upright zooms that way only.
  let from = null;
  const ends = (a, b, low, top) => [Math.max(low, Math.min(a, b)), Math.min(top, Math.max(a, b))];
  canvas.addEventListener("pointerdown", (event) => {
    if (self.zoomable && view && event.button === 0 && self.at(event)) { from = place(event); canvas.setPointerCapture(event.pointerId); }
  });
  function boxed(event) {
    const [px, py] = place(event), [x0, x1] = ends(from[0], px, EDGE.l, wide - EDGE.r), [y0, y1] = ends(from[1], py, EDGE.t, high - EDGE.b), flat = y1 - y0 < 12, thin = x1 - x0 < 12;
    return flat && thin ? null : { x: thin ? [EDGE.l, wide - EDGE.r] : [x0, x1], y: flat ? [EDGE.t, high - EDGE.b] : [y0, y1] };
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = from && boxed(event);
    band.hidden = !box;
    if (box) Object.assign(band.style, { left: `${box.x[0]}px`, width: `${box.x[1] - box.x[0]}px`, top: `${box.y[0]}px`, height: `${box.y[1] - box.y[0]}px` });
  });
  const let_go = (event, done) => {
    const box = from && done && boxed(event);
    from = null; band.hidden = true;
    if (box) self.zoomed({ x: box.x.map(backX), y: [backY(box.y[1]), backY(box.y[0])] });
  };
  canvas.addEventListener("pointerup", (event) => let_go(event, true));
  canvas.addEventListener("pointercancel", (event) => let_go(event, false));
  canvas.addEventListener("dblclick", () => self.zoomable && self.zoomed(null));
  return self;
}
