/* What Learn and Compare share: asking, answering, drawing. `root` is the component's own element and `state` what
   it asks with; `element`, `props` and `server` are given by gr.HTML, `lab` by the page's bus. */
const plots = new Map();
const el = (tag, cls, html) => {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (html !== undefined) node.innerHTML = html;
  return node;
};
const visible = () => element.offsetParent !== null;
const size = () => parseFloat(getComputedStyle(root).fontSize);

/* Ask for the newest state only: while one answer is under way, later wishes collapse into one. An answer that is lost
   (Gradio gives undefined then) or does not come is asked for again: a page must not stay empty for one request. */
const PATIENCE = 15000, LONGEST_PATIENCE = 120000, PAUSE = 400, LONGEST_PAUSE = 8000;       // ms
function asker(question, fits) {
  let flying = false, waiting = false, wake = () => {};
  const rest = (time) => new Promise((done) => { wake = done; setTimeout(done, time); });
  let timer = 0;
  const late = (time) => new Promise((done) => { timer = setTimeout(done, time); });
  async function answer() {
    for (let lost = 0; ; lost++) {
      const view = await Promise.race([question(), late(Math.min(LONGEST_PATIENCE, PATIENCE * 2 ** lost))]).catch(() => undefined);
      clearTimeout(timer);
      if (view || !element.isConnected) return view;
      if (lost) tell(props.trouble[state.lang]);
      if (!waiting) await rest(Math.min(LONGEST_PAUSE, PAUSE * 2 ** lost));
      waiting = false;                                           // the next question is about the newest state
    }
  }
  async function ask() {
    ask.begun = true;
    if (flying) { waiting = true; wake(); return; }
    flying = true;
    try {
      const view = await answer();
      if (view && fits(view)) { state.view = view; show(view); }
    } catch (problem) {
      console.error(problem);
      tell(props.trouble[state.lang]);
    } finally {
      flying = false;
      if (waiting) { waiting = false; ask(); }
    }
  }
  return ask;
}

/* Nothing is asked before the place is looked at, so the page's first paint owes it nothing. The header tells; a page
   without one is asked by an observer, which needs a painted window. */
function looked(place, ask, back = () => {}) {
  const look = () => (ask.begun ? back() : ask());
  lab.on('place', (now) => { if (now === place) look(); });
  new IntersectionObserver((seen) => { if (seen.some((entry) => entry.isIntersecting)) look(); }).observe(element);
}

function tell(sentence) {
  const line = root.querySelector('.l-trouble') || root.appendChild(el('p', 'l-trouble'));
  line.setAttribute('role', 'status');
  line.textContent = sentence;
}

function send(id, value) { state.controls[id] = value; ask(); }

/* A choice of a few, all in view. */
function chips(control) {
  const group = el('fieldset', 'l-control');
  group.append(el('legend', '', control.label));
  control.options.forEach(([value, text]) => {
    const label = el('label', 'l-chip'), input = el('input');
    Object.assign(input, { type: 'radio', name: element.id + '-' + control.id, value, checked: String(value) === String(control.value) });
    input.onchange = () => send(control.id, value);
    label.append(input, el('span', '', text));
    group.append(label);
  });
  return group;
}

async function drawPlot(canvas, figure) {
  let plotly;
  try { plotly = await library(); } catch (problem) { tell(props.trouble[state.lang]); return; }
  if (!canvas.isConnected) return;
  const spec = themed(figure.spec);
  const layout = spec.layout;
  layout.font = { ...layout.font, family: getComputedStyle(root).fontFamily, size: Math.round(size() * (innerWidth < 600 ? .8 : .85)), color: themed('#1D2130') };
  layout.paper_bgcolor = layout.plot_bgcolor = 'rgba(0,0,0,0)';
  layout.autosize = true;
  const names = (layout.yaxis?.ticktext ?? []).map((name) => broad(String(name).replace(/<[^>]*>/g, '')));       // rows with names leave less room below
  const left = Math.max(0, ...names) * layout.font.size;
  for (const [name, room] of [['xaxis', Math.max(90, canvas.clientWidth * .85 - left)], ['yaxis', canvas.clientHeight * .75]]) {
    const axis = layout[name];
    if (!axis) continue;
    delete axis.tickfont;
    if (axis.title && axis.title.text) axis.title = { ...axis.title, text: folded(axis.title.text, room / layout.font.size), font: { size: layout.font.size } };
  }
  layout.uirevision = figure.id;
  await plotly.react(canvas, spec.data, layout, { displayModeBar: false, responsive: true, scrollZoom: false });
  if (!plots.has(canvas)) {
    if (figure.chosen) canvas.on('plotly_click', (event) => figure.chosen(event.points[0].customdata));
    const watcher = new ResizeObserver(() => canvas.offsetParent && plotly.Plots.resize(canvas));
    watcher.observe(canvas);
    plots.set(canvas, { stop: () => { watcher.disconnect(); plotly.purge(canvas); } });
  }
}

/* The width of a text in ems; a CJK character is about twice as wide as a Latin one. */
function broad(text) { return [...text].reduce((sum, c) => sum + (c > '\u2e80' ? 1 : .52), 0); }

/* Break an axis title that is wider than its axis. */
function folded(text, room) {
  const parts = text.match(/[\u2e80-\uffff]\s*|[^\s\u2e80-\uffff]+\s*/g) || [text];
  let line = 0, out = '';
  for (const part of parts) {
    const length = broad(part);
    if (line && line + length > room) { out = out.trimEnd() + '<br>'; line = 0; }
    out += part; line += length;
  }
  return out;
}

/* Learn and Compare share one promise, so that the library is loaded once. */
function library() {
  return (lab.plotly ??= new Promise((found, lost) => {
    if (window.Plotly) { found(window.Plotly); return; }
    const script = document.createElement('script');
    script.src = lab.file(props.plotly);
    script.onload = () => found(window.Plotly);
    script.onerror = () => { lab.plotly = null; lost(new Error('plotly')); };
    document.head.append(script);
  }));
}

/* Follow a link into the Lab without leaving the page; new tabs and a page without the Lab use the link itself.
   A link that names a run opens it whole, with its videos and its words. */
async function intoLab(event, cfg) {
  if (!lab.go || (event && (event.ctrlKey || event.metaKey || event.shiftKey))) return;
  if (event) event.preventDefault();
  lab.go('lab');
  const opened = cfg.source && cfg.source !== lab.state.source ? await lab.open(cfg.source) : null;
  if (opened) lab.emit('ask', opened.ask);
  lab.emit('look', { policy: cfg.policy, preset: null });
}
