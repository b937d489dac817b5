/* One lesson on the page. Every number and every word comes from the server function
   `open_lesson({lesson, lang, controls})`; this file only lays out, draws and listens.
   `element`, `props`, `server`, `watch` and `trigger` are given by gr.HTML. */
const root = element.querySelector('.course');
const state = { lesson: 1, lang: lab.lang || 'en', controls: {}, view: null, presenter: false, words: false, shown: '' };

/* DRAWING */

const ask = asker(() => server.open_lesson({ lesson: state.lesson, lang: state.lang, controls: state.controls }),
  (view) => view.lesson === state.lesson && view.lang === state.lang);

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
  if (state.words) url.searchParams.set('words', '1'); else url.searchParams.delete('words');
  history.replaceState(history.state, '', url);
}

function forget() {
  const url = new URL(location.href);
  if (!url.searchParams.has('lesson')) return;
  url.searchParams.delete('lesson');
  url.searchParams.delete('present');
  url.searchParams.delete('words');
  history.replaceState(history.state, '', url);
}

/* ---------- layout ---------- */
function show(view) {
  const key = view.lesson + view.lang;
  const fresh = state.shown !== key, first = !state.shown;
  if (fresh) { build(view); state.shown = key; }
  view.controls.forEach(refreshControl);
  root.querySelector('.l-facts').innerHTML = view.facts
    .map(([big, small]) => `<div><b>${big}</b><span>${small}</span></div>`).join('');
  const aha = root.querySelector('.l-aha p');
  if (aha.innerHTML !== view.aha) aha.innerHTML = view.aha;
  root.querySelector('.l-note').innerHTML = view.note;
  root.querySelector('.l-trouble').textContent = '';
  view.figures.forEach((figure) => draw(figure));
  if (fresh && state.moved) root.querySelector('h2').focus({ preventScroll: true });
  else if (first && state.words) root.querySelector('.l-words').scrollIntoView({ block: 'start' });       // what the link asked for
  state.moved = false;
}

function build(view) {
  plots.forEach((plot) => plot.stop && plot.stop());
  plots.clear();
  const words = view.words, fold = root.querySelector('.l-words');
  if (fold) keep(fold);
  root.replaceChildren();
  root.lang = view.lang;

  const bar = el('nav', 'l-bar');
  bar.setAttribute('aria-label', words.lessons);
  const list = el('ol');
  view.titles.forEach((title, i) => {
    const button = el('button', i + 1 === view.lesson ? 'l-dot l-here' : 'l-dot', `<i>${i + 1 < props.count ? i + 1 : '★'}</i><span>${title}</span>`);
    if (i + 1 === view.lesson) button.setAttribute('aria-current', 'step');
    button.title = title.replace(/<[^>]*>/g, '');
    button.onclick = () => { state.moved = true; go(i + 1); };
    const item = el('li'); item.append(button); list.append(item);
  });
  const present = el('button', 'l-present', words.present);
  present.setAttribute('aria-pressed', state.presenter);
  present.title = words.present_hint;
  present.onclick = () => setPresenter(!state.presenter);
  bar.append(list, present);

  const head = el('header', 'l-head');
  const title = el('h2', '', view.title);
  title.tabIndex = -1;
  head.append(el('p', 'l-count', words.count), title, el('p', 'l-lead', view.lead));

  const figures = el('div', 'l-figures');
  view.figures.forEach((figure) => {
    const box = el('figure', 'l-fig l-' + figure.kind);
    box.dataset.id = figure.id;
    if (figure.title) box.append(el('figcaption', '', figure.title));
    const canvas = el('div', 'l-canvas');
    canvas.style.height = figure.height ? figure.height + 'em' : '';
    if (figure.alt) { canvas.setAttribute('role', figure.kind === 'ruler' ? 'group' : 'img'); canvas.setAttribute('aria-label', figure.alt); }
    box.append(canvas);
    figures.append(box);
  });

  const side = el('div', 'l-side');
  const task = el('section', 'l-task');
  if (view.task) task.append(el('p', 'l-do', view.task));
  view.controls.forEach((control) => task.append(buildControl(control)));
  const aha = el('section', 'l-aha', `<h3>${words.aha}</h3><p aria-live="polite"></p>`);
  side.append(task, el('section', 'l-facts'), aha, el('p', 'l-trouble'));

  const body = el('div', 'l-body');
  body.append(figures, side);
  const foot = el('footer', 'l-foot');
  const step = (cls, text, to) => {
    const button = el('button', cls, text);
    button.disabled = to < 1 || to > props.count;
    button.onclick = () => { state.moved = true; go(to); root.scrollIntoView({ block: 'start' }); };
    return button;
  };
  foot.append(step('l-before', '← ' + words.before, view.lesson - 1));
  if (view.lab) {
    const link = el('a', 'l-lab', view.lab.label);
    link.href = view.lab.href;
    link.onclick = (event) => intoLab(event, state.view.lab.cfg);
    foot.append(link);
  }
  foot.append(step('l-after', words.after + ' →', view.lesson + 1));
  root.append(bar, head, body, el('p', 'l-note'), foot, glossary(view.glossary));
}

/* The terms, folded; `words=1` in the address opens them. */
function glossary(part) {
  const fold = el('details', 'l-words'), list = el('dl'), paper = el('a', '', part.paper.label);
  fold.open = state.words;
  part.terms.forEach(([term, line]) => list.append(el('dt', '', term), el('dd', '', line)));
  Object.assign(paper, { href: part.paper.href, target: '_blank', rel: 'noopener' });
  const last = el('p');
  last.append(paper);
  fold.append(el('summary', '', part.title), list, last);
  fold.ontoggle = () => { if (fold.isConnected) keep(fold); };
  return fold;
}

/* A fold tells a moment later that it was moved; who replaces it before looks for himself. */
function keep(fold) {
  if (fold.open === state.words) return;
  state.words = fold.open;
  remember();
}

/* ---------- controls ---------- */
function buildControl(control) {
  const box = el('div', 'l-control l-' + control.kind);
  box.dataset.id = control.id;
  const name = 'lesson-' + control.id;
  if (control.kind === 'range') {
    const label = el('label', '', `<span>${control.label}</span><output></output>`);
    const input = el('input');
    Object.assign(input, { type: 'range', id: name, min: control.min, max: control.max, step: control.step, value: control.value });
    label.htmlFor = name;
    input.oninput = () => send(control.id, Number(input.value));
    box.append(label, input);
    if (control.ends) box.append(el('div', 'l-ends', `<span>${control.ends[0]}</span><span>${control.ends[1]}</span>`));
  } else if (control.kind === 'pick') {
    const label = el('label', '', `<span>${control.label}</span>`);
    const select = el('select');
    select.id = name; label.htmlFor = name;
    control.options.forEach(([value, text]) => { const option = el('option', '', text); option.value = value; select.append(option); });
    select.value = control.value;
    select.onchange = () => send(control.id, select.value);
    box.append(label, select);
  } else {
    box.append(chips(control));
  }
  if (control.hint) box.append(el('p', 'l-hint', control.hint));
  return box;
}

function refreshControl(control) {
  const box = root.querySelector(`.l-control[data-id="${control.id}"]`);
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
  const canvas = root.querySelector(`.l-fig[data-id="${figure.id}"] .l-canvas`);
  if (!canvas) return;
  if (figure.kind === 'plot') drawPlot(canvas, figure);
  else if (figure.kind === 'film') drawFilm(canvas, figure);
  else if (figure.kind === 'ruler') drawRuler(canvas, figure);
}

/* A strip of frames from the recording's sprite book (one row per step), scaled by the browser. */
function drawFilm(canvas, figure) {
  const strip = figure.spec;
  if (canvas.dataset.path !== strip.path) {
    canvas.dataset.path = strip.path;
    canvas.replaceChildren(...strip.frames.map(([column, name]) => {
      const cell = el('div', 'l-frame');
      cell.style.aspectRatio = strip.aspect;
      cell.style.backgroundImage = `url("${lab.file(strip.path)}")`;
      cell.style.backgroundSize = `${strip.columns * 100}% ${strip.rows * 100}%`;
      cell.style.backgroundPositionX = `${strip.columns > 1 ? column / (strip.columns - 1) * 100 : 0}%`;
      const box = el('div', 'l-shot');
      box.append(cell, el('span', '', name));
      return box;
    }));
  }
  const y = `${strip.rows > 1 ? strip.row / (strip.rows - 1) * 100 : 0}%`;
  canvas.querySelectorAll('.l-frame').forEach((cell) => { cell.style.backgroundPositionY = y; });
  const caption = canvas.closest('figure').querySelector('figcaption');
  if (caption) caption.textContent = figure.title;
}

/* ---------- life ---------- */
function setPresenter(on) {
  state.presenter = on;
  root.classList.toggle('l-big', on);
  const button = root.querySelector('.l-present');
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
if (asked.get('present') === '1') { state.presenter = true; root.classList.add('l-big'); }
if (asked.get('words') === '1') state.words = true;
document.addEventListener('keydown', onKey);
new MutationObserver(() => { if (state.view && visible()) state.view.figures.forEach(draw); })
  .observe(document.body, { attributes: true, attributeFilter: ['class'] });
lab.on('lang', (lang) => { if (lang === state.lang) return; state.lang = lang; if (ask.begun) ask(); });
lab.on('place', (place) => { if (place !== 'learn') forget(); }, false);
looked('learn', ask, () => { if (state.shown) remember(); });
