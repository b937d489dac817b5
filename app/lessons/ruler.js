/* Sixteen values of a real block against the ruler of each format; one value can be dragged.
   Inside the middle 80 % of the height the axis is linear; beyond, it is logarithmic, so that an
   outlier of forty times the block still fits while its neighbours stay readable. */
const SVG = 'http://www.w3.org/2000/svg';
const LINEAR = 0.8;

function shape(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
  if (text !== undefined) node.textContent = text;
  return node;
}

function drawRuler(canvas, figure) {
  const spec = figure.spec;
  if (!canvas.ruler) {
    canvas.ruler = { panels: spec.formats.map(() => { const box = el('div', 'l-panel'); canvas.append(box); return box; }) };
    const watcher = new ResizeObserver(() => paint(canvas));
    watcher.observe(canvas);
    plots.set(canvas, { stop: () => watcher.disconnect() });
  }
  canvas.ruler.spec = spec;
  if (!canvas.ruler.dragging) canvas.ruler.local = { index: spec.index, value: spec.values[spec.index] };
  paint(canvas);
}

function paint(canvas) {
  const { spec, panels } = canvas.ruler;
  if (!canvas.offsetParent) return;
  const focused = canvas.contains(document.activeElement) && document.activeElement.closest('.l-panel');
  panels.forEach((box, i) => paintPanel(canvas, box, spec, spec.formats[i]));
  if (focused) { const handle = focused.querySelector('[role=slider]'); if (handle) handle.focus({ preventScroll: true }); }
}

function paintPanel(canvas, box, spec, format) {
  const em = size(), width = Math.max(240, box.clientWidth), height = Math.round(em * 15);
  const half = height / 2 - em * 0.6, middle = height / 2, column = width / 16;
  const most = Math.log(spec.most);
  const up = (value) => {
    const far = Math.abs(value) / spec.span;
    const part = far <= 1 ? LINEAR * far : LINEAR + (1 - LINEAR) * Math.min(1, Math.log(far) / most);
    return middle - Math.sign(value) * part * half;
  };
  const back = (y) => {
    const part = Math.min(1, Math.abs(middle - y) / half), sign = y < middle ? 1 : -1;
    return sign * spec.span * (part <= LINEAR ? part / LINEAR : Math.exp((part - LINEAR) / (1 - LINEAR) * most));
  };
  const svg = shape('svg', { width, height, viewBox: `0 0 ${width} ${height}` });
  const ink = themed('#1D2130'), colour = format.colour, local = canvas.ruler.local;

  const lines = format.lines.filter((level) => Math.abs(level) <= spec.span * 1.0001);
  const gap = lines.length > 1 ? Math.abs(up(lines[1]) - up(lines[0])) : half;
  if (format.fine && gap < 3) {
    svg.append(shape('rect', { x: 0, width, y: up(spec.span), height: up(-spec.span) - up(spec.span), fill: colour, opacity: dark() ? .3 : .16 }));
  } else {
    lines.forEach((level) => svg.append(shape('line', { x1: 0, x2: width, y1: up(level), y2: up(level), stroke: colour, 'stroke-width': level === 0 ? 0 : 1, opacity: .8 })));
  }
  svg.append(shape('line', { x1: 0, x2: width, y1: middle, y2: middle, stroke: ink, opacity: .5 }));

  spec.values.forEach((value, i) => {
    const real = i === local.index ? local.value : value;
    const x = i * column, y = up(real);
    svg.append(shape('rect', {
      x: x + column * .2, width: column * .6, y: Math.min(y, middle), height: Math.max(1, Math.abs(y - middle)),
      fill: i === local.index ? themed('#E4570B') : ink, opacity: i === local.index ? .95 : .3, rx: 2,
    }));
    if (Math.abs(real) > spec.span) {
      const cut = middle - Math.sign(real) * half * LINEAR;
      svg.append(shape('path', { d: `M${x} ${cut + 4} l${column / 3} -8 l${column / 3} 8 l${column / 3} -8`, fill: 'none', stroke: themed('#FFFFFF'), 'stroke-width': 4 }));
    }
    const snapped = up(format.values[i]);
    svg.append(shape('line', { x1: x + column * .06, x2: x + column * .94, y1: snapped, y2: snapped, stroke: format.mark[dark() ? 1 : 0], 'stroke-width': Math.max(3, em * .22), 'stroke-linecap': 'round' }));
  });

  const x = local.index * column + column / 2, y = up(local.value);
  const handle = shape('g', { class: 'l-handle', tabindex: 0, role: 'slider', 'aria-orientation': 'vertical', 'aria-label': spec.words.handle, 'aria-valuenow': Math.round(local.value / spec.span * 100), 'aria-valuemin': -spec.most * 100, 'aria-valuemax': spec.most * 100, 'aria-valuetext': local.value.toPrecision(3) });
  handle.append(shape('circle', { cx: x, cy: y, r: Math.max(14, em * .8), fill: 'transparent' }));
  handle.append(shape('circle', { class: 'l-grip', cx: x, cy: y, r: Math.max(6, em * .42), fill: themed('#E4570B'), stroke: themed('#FFFFFF'), 'stroke-width': 2 }));
  svg.append(handle);

  svg.addEventListener('pointerdown', (event) => {
    const place = svg.getBoundingClientRect();
    const onHandle = event.target.closest('.l-handle');
    const index = onHandle ? local.index : Math.max(0, Math.min(15, Math.floor((event.clientX - place.left) / column)));
    if (event.pointerType === 'touch' && !onHandle) { choose(canvas, index); return; }
    event.preventDefault();
    canvas.ruler.dragging = true;
    const follow = (move) => { canvas.ruler.local = { index, value: back(move.clientY - place.top) }; commit(canvas); };
    const end = () => {
      canvas.ruler.dragging = false;
      removeEventListener('pointermove', follow); removeEventListener('pointerup', end); removeEventListener('pointercancel', end);
      commit(canvas);
    };
    addEventListener('pointermove', follow); addEventListener('pointerup', end); addEventListener('pointercancel', end);
    follow(event);
  });
  svg.addEventListener('keydown', (event) => {
    const far = Math.abs(local.value) / spec.span;
    const stride = event.shiftKey || far > 1 ? Math.max(.25, far * .2) : .05;
    if (event.key === 'ArrowUp' || event.key === 'ArrowDown') {
      const moved = local.value + (event.key === 'ArrowUp' ? 1 : -1) * stride * spec.span;
      canvas.ruler.local = { index: local.index, value: Math.max(-spec.most * spec.span, Math.min(spec.most * spec.span, moved)) };
      commit(canvas);
    } else if (event.key === 'ArrowLeft' || event.key === 'ArrowRight') {
      choose(canvas, (local.index + (event.key === 'ArrowRight' ? 1 : 15)) % 16);
    } else if (event.key === 'Escape') choose(canvas, local.index);
    else return;
    event.preventDefault(); event.stopPropagation();
  });
  box.replaceChildren(el('h3', '', format.title), svg, blockStrip(format, spec));
}

/* The whole token as one cell per block of sixteen: how wrong each block is now. */
function blockStrip(format, spec) {
  const strip = el('div', 'l-strip');
  const row = el('div', 'l-cells');
  format.blocks.forEach((error, i) => {
    const cell = el('i', i === spec.block ? 'l-mine' : '');
    cell.style.background = format.shade;
    cell.style.opacity = Math.max(.04, Math.min(1, error / spec.worst));
    row.append(el('span', i === spec.block ? 'l-mine' : ''));
    row.lastChild.append(cell);
  });
  strip.append(row, el('p', '', format.sentence));
  return strip;
}

function choose(canvas, index) {
  canvas.ruler.local = { index, value: canvas.ruler.spec.original[index] };
  commit(canvas);
}

function commit(canvas) {
  state.controls.index = canvas.ruler.local.index;
  send('value', canvas.ruler.local.value);
  paint(canvas);
}
