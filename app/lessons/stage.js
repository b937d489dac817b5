/* One lesson on the page. Every number and every word comes from the server function
   `open_lesson(lesson, language, controls)`; this file only lays out, draws and listens.
   `element`, `props`, `server`, `watch` and `trigger` are given by gr.HTML. */
const root = element.querySelector('.course');
const state = { lesson: 1, lang: props.lang || 'en', controls: {}, view: null, presenter: false, shown: '' };
const plots = new Map();
let flying = false, waiting = false;

const el = (tag, cls, html) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (html !== undefined) node.innerHTML = html;
  return node;
};
const visible = () => element.offsetParent !== null;
const dark = () => document.body.classList.contains('dark');
const css = (name, fallback) => getComputedStyle(element).getPropertyValue(name).trim() || fallback;
const tint = (colour) => (dark() && props.dark[String(colour).toUpperCase()]) || colour;
const size = () => parseFloat(getComputedStyle(root).fontSize);

/* Ask for the newest state only: while one answer is under way, later wishes collapse into one. */
async function ask() {
  if (flying) { waiting = true; return; }
  flying = true;
  try {
    const view = await server.open_lesson(state.lesson, state.lang, state.controls);
    if (view.lesson === state.lesson && view.lang === state.lang) { state.view = view; show(view); }
  } catch (problem) {
    root.querySelector('.trouble').textContent = props.words[state.lang]['learn.trouble'];
  } finally {
    flying = false;
    if (waiting) { waiting = false; ask(); }
  }
}

function go(lesson) {
  const count = props.count;
  if (lesson < 1 || lesson > count || lesson === state.lesson) return;
  state.lesson = lesson;
  state.controls = {};
  remember();
  ask();
}

function remember() {
  if (!visible()) return;
  const url = new URL(location.href);
  url.searchParams.set('lesson', state.lesson);
  if (state.presenter) url.searchParams.set('present', '1'); else url.searchParams.delete('present');
  history.replaceState(history.state, '', url);
}

/* ---------- layout ---------- */
function show(view) {
  const key = view.lesson + view.lang;
  const fresh = state.shown !== key;
  if (fresh) { build(view); state.shown = key; }
  view.controls.forEach(refreshControl);
  root.querySelector('.facts').innerHTML = view.facts
    .map(([big, small]) => `<div><b>${big}</b><span>${small}</span></div>`).join('');
  const aha = root.querySelector('.aha p');
  if (aha.innerHTML !== view.aha) aha.innerHTML = view.aha;
  root.querySelector('.note').innerHTML = view.note;
  root.querySelector('.trouble').textContent = '';
  view.figures.forEach((figure) => draw(figure));
  if (fresh && state.moved) root.querySelector('h2').focus({ preventScroll: true });
  state.moved = false;
}

function build(view) {
  plots.forEach((plot) => plot.stop && plot.stop());
  plots.clear();
  const words = view.words;
  root.replaceChildren();
  root.lang = view.lang;

  const bar = el('nav', 'bar');
  bar.setAttribute('aria-label', words.lessons);
  const list = el('ol');
  view.titles.forEach((title, i) => {
    const button = el('button', i + 1 === view.lesson ? 'dot here' : 'dot', `<i>${i + 1 < props.count ? i + 1 : '★'}</i><span>${title}</span>`);
    if (i + 1 === view.lesson) button.setAttribute('aria-current', 'step');
    button.title = title.replace(/<[^>]*>/g, '');
    button.onclick = () => { state.moved = true; go(i + 1); };
    const item = el('li'); item.append(button); list.append(item);
  });
  const present = el('button', 'present', words.present);
  present.setAttribute('aria-pressed', state.presenter);
  present.title = words.present_hint;
  present.onclick = () => setPresenter(!state.presenter);
  bar.append(list, present);

  const head = el('header', 'head');
  const title = el('h2', '', view.title);
  title.tabIndex = -1;
  head.append(el('p', 'count', words.count), title, el('p', 'lead', view.lead));

  const figures = el('div', 'figures');
  view.figures.forEach((figure) => {
    const box = el('figure', 'fig ' + figure.kind);
    box.dataset.id = figure.id;
    if (figure.title) box.append(el('figcaption', '', figure.title));
    const canvas = el('div', 'canvas');
    canvas.style.height = figure.height ? figure.height + 'em' : '';
    if (figure.alt) { canvas.setAttribute('role', figure.kind === 'ruler' ? 'group' : 'img'); canvas.setAttribute('aria-label', figure.alt); }
    box.append(canvas);
    figures.append(box);
  });

  const side = el('div', 'side');
  const task = el('section', 'task');
  if (view.task) task.append(el('p', 'do', view.task));
  view.controls.forEach((control) => task.append(buildControl(control)));
  const aha = el('section', 'aha', `<h3>${words.aha}</h3><p aria-live="polite"></p>`);
  side.append(task, el('section', 'facts'), aha, el('p', 'trouble'));
  side.querySelector('.trouble').setAttribute('role', 'status');

  const body = el('div', 'body');
  body.append(figures, side);
  const foot = el('footer', 'foot');
  const step = (cls, text, to) => {
    const button = el('button', cls, text);
    button.disabled = to < 1 || to > props.count;
    button.onclick = () => { state.moved = true; go(to); root.scrollIntoView({ block: 'start' }); };
    return button;
  };
  foot.append(step('before', '← ' + words.before, view.lesson - 1));
  if (view.lab) {
    const link = el('a', 'lab', view.lab.label);
    link.href = view.lab.href;
    foot.append(link);
  }
  foot.append(step('after', words.after + ' →', view.lesson + 1));
  root.append(bar, head, body, el('p', 'note'), foot);
}

/* ---------- controls ---------- */
function send(id, value) { state.controls[id] = value; ask(); }

function buildControl(control) {
  const box = el('div', 'control ' + control.kind);
  box.dataset.id = control.id;
  const name = 'lesson-' + control.id;
  if (control.kind === 'range') {
    const label = el('label', '', `<span>${control.label}</span><output></output>`);
    const input = el('input');
    Object.assign(input, { type: 'range', id: name, min: control.min, max: control.max, step: control.step, value: control.value });
    label.htmlFor = name;
    input.oninput = () => send(control.id, Number(input.value));
    box.append(label, input);
    if (control.ends) box.append(el('div', 'ends', `<span>${control.ends[0]}</span><span>${control.ends[1]}</span>`));
  } else if (control.kind === 'pick') {
    const label = el('label', '', `<span>${control.label}</span>`);
    const select = el('select');
    select.id = name; label.htmlFor = name;
    control.options.forEach(([value, text]) => { const option = el('option', '', text); option.value = value; select.append(option); });
    select.value = control.value;
    select.onchange = () => send(control.id, select.value);
    box.append(label, select);
  } else {
    const group = el('fieldset');
    group.append(el('legend', '', control.label));
    control.options.forEach(([value, text]) => {
      const label = el('label', 'chip', '');
      const input = el('input');
      Object.assign(input, { type: 'radio', name, value, checked: String(value) === String(control.value) });
      input.onchange = () => send(control.id, value);
      label.append(input, el('span', '', text));
      group.append(label);
    });
    box.append(group);
  }
  if (control.hint) box.append(el('p', 'hint', control.hint));
  return box;
}

function refreshControl(control) {
  const box = root.querySelector(`.control[data-id="${control.id}"]`);
  if (!box) return;
  const output = box.querySelector('output');
  if (output) output.innerHTML = control.shown;
  const input = box.querySelector('input[type=range]');
  if (input) {
    input.setAttribute('aria-valuetext', (control.shown || '').replace(/<[^>]*>/g, ''));
    if (document.activeElement !== input && Number(input.value) !== control.value) input.value = control.value;
  }
}

/* ---------- figures ---------- */
function draw(figure) {
  const canvas = root.querySelector(`.fig[data-id="${figure.id}"] .canvas`);
  if (!canvas) return;
  if (figure.kind === 'plot') drawPlot(canvas, figure);
  else if (figure.kind === 'film') drawFilm(canvas, figure);
  else if (figure.kind === 'ruler') drawRuler(canvas, figure);
}

function themed(value) {
  if (Array.isArray(value)) return value.map(themed);
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v)]));
  return typeof value === 'string' ? tint(value) : value;
}

async function drawPlot(canvas, figure) {
  const plotly = await ready();
  if (!plotly || !canvas.isConnected) return;
  const spec = themed(figure.spec);
  const layout = spec.layout;
  layout.font = { ...layout.font, family: getComputedStyle(root).fontFamily, size: Math.round(size() * (innerWidth < 600 ? .8 : .85)), color: css('--body-text-color', tint('#1D2130')) };
  layout.paper_bgcolor = layout.plot_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true;
  layout.uirevision = state.shown;
  await plotly.react(canvas, spec.data, layout, { displayModeBar: false, responsive: true, scrollZoom: false });
  if (!plots.has(canvas)) {
    const watcher = new ResizeObserver(() => canvas.offsetParent && plotly.Plots.resize(canvas));
    watcher.observe(canvas);
    plots.set(canvas, { stop: () => { watcher.disconnect(); plotly.purge(canvas); } });
  }
}

function ready() {
  return new Promise((resolve) => {
    const until = performance.now() + 15000;
    (function look() {
      if (window.Plotly) resolve(window.Plotly);
      else if (performance.now() > until) resolve(null);
      else setTimeout(look, 60);
    })();
  });
}

/* A strip of frames from one sprite sheet (columns x rows of equal cells), scaled by the browser. */
function drawFilm(canvas, figure) {
  const strip = figure.spec;
  if (canvas.dataset.src !== strip.src) {
    canvas.dataset.src = strip.src;
    canvas.replaceChildren(...strip.frames.map((frame) => {
      const cell = el('div', 'frame');
      cell.style.aspectRatio = strip.aspect;
      cell.style.backgroundImage = `url("${strip.src}")`;
      cell.style.backgroundSize = `${strip.columns * 100}% ${strip.rows * 100}%`;
      const x = frame.cell % strip.columns, y = Math.floor(frame.cell / strip.columns);
      cell.style.backgroundPosition = `${strip.columns > 1 ? x / (strip.columns - 1) * 100 : 0}% ${strip.rows > 1 ? y / (strip.rows - 1) * 100 : 0}%`;
      const box = el('div', 'shot');
      box.append(cell, el('span', '', frame.name));
      return box;
    }));
    if (strip.ahead) strip.ahead.forEach((src) => { new Image().src = src; });
  }
}

/* RULER */

/* ---------- life ---------- */
function setPresenter(on) {
  state.presenter = on;
  root.classList.toggle('big', on);
  const button = root.querySelector('.present');
  if (button) button.setAttribute('aria-pressed', on);
  remember();
  if (state.view) state.view.figures.forEach(draw);
}

function onKey(event) {
  if (!element.isConnected) { document.removeEventListener('keydown', onKey); return; }
  if (!visible() || event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest('input, select, textarea, [role=slider], [contenteditable]')) return;
  if (event.key === 'ArrowRight' || event.key === 'ArrowLeft') {
    event.preventDefault();
    state.moved = true;
    go(state.lesson + (event.key === 'ArrowRight' ? 1 : -1));
  } else if (event.key === 'p' || event.key === 'P') setPresenter(!state.presenter);
}

const asked = new URLSearchParams(location.search);
const wanted = parseInt(asked.get('lesson'), 10);
if (wanted >= 1 && wanted <= props.count) state.lesson = wanted;
if (asked.get('present') === '1') { state.presenter = true; root.classList.add('big'); }
document.addEventListener('keydown', onKey);
new MutationObserver(() => state.view && visible() && state.view.figures.forEach(draw))
  .observe(document.body, { attributes: true, attributeFilter: ['class'] });
watch('lang', () => { state.lang = props.lang; if (state.view) ask(); });
/* Nothing is asked before the place is looked at, so the page's first paint owes it nothing. */
new IntersectionObserver((seen) => {
  if (!seen.some((entry) => entry.isIntersecting)) return;
  if (!state.view) ask(); else if (state.shown) remember();
}).observe(element);
