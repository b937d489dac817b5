/* Compare: one figure with its controls, and tables. All words and numbers come from `open_compare`. */
const root = element.querySelector('.versus');
const state = { lang: lab.lang || 'en', controls: {}, view: null };

/* DRAWING */

const ask = asker(() => server.open_compare({ lang: state.lang, controls: state.controls }), (view) => view.lang === state.lang);

function show(view) {
  root.lang = view.lang;
  const kept = root.querySelector('.v-plot');
  const open = [...root.querySelectorAll('details[open]')].map((fold) => fold.dataset.fold);
  const old = root.querySelector('.v-heat');
  if (old && plots.has(old)) { plots.get(old).stop(); plots.delete(old); }
  const focused = document.activeElement && root.contains(document.activeElement) ? document.activeElement.value : null;
  const canvas = kept && kept.dataset.lang === view.lang ? kept : el('div', 'l-canvas v-plot');
  if (canvas !== kept) { plots.forEach((plot) => plot.stop()); plots.clear(); }
  canvas.dataset.lang = view.lang;
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', view.frontier.alt);
  const card = el('section', 'v-card');
  const choices = el('div', 'v-choices');
  view.frontier.controls.forEach((control) => choices.append(chips(control)));
  const details = el('details');
  details.dataset.fold = 'rows'; details.open = open.includes('rows');
  details.append(el('summary', '', view.frontier.table.title), table(view.frontier.table));
  card.append(el('h3', '', view.frontier.title), el('p', 'v-lead', view.frontier.lead), choices, canvas, who(view.frontier.figure), el('p', 'v-verdict', view.frontier.verdict));
  if (view.frontier.table.rows.length) card.append(details);

  const ablation = el('section', 'v-card');
  ablation.append(el('h3', '', view.ablation.title), el('p', 'v-lead', view.ablation.lead));
  if (view.ablation.rows.length) ablation.append(table(view.ablation));
  const extra = [];
  if (view.sensitivity) {
    const map = el('div', 'l-canvas v-heat');
    map.style.height = view.sensitivity.height + 'em';
    map.setAttribute('role', 'img');
    map.setAttribute('aria-label', view.sensitivity.alt);
    const part = el('section', 'v-card');
    part.append(el('h3', '', view.sensitivity.title), el('p', 'v-lead', view.sensitivity.lead), map, el('p', 'v-verdict', view.sensitivity.verdict));
    extra.push(part);
  }
  if (view.settings) {
    const part = el('section', 'v-card'), fold = el('details');
    fold.dataset.fold = 'settings'; fold.open = open.includes('settings');
    fold.append(el('summary', '', view.settings.title), el('p', 'v-lead', view.settings.lead), table(view.settings));
    part.append(fold);
    extra.push(part);
  }
  const speed = el('section', 'v-card');
  speed.append(el('h3', '', view.speed_title));
  if (view.speed_missing) speed.append(el('p', 'v-lead', view.speed_missing));
  view.speed.forEach((part) => speed.append(el('p', 'v-lead', part.lead), table(part)));
  root.replaceChildren(el('h2', '', view.title), el('p', 'v-top', view.lead), ...view.headline.map((said) => el('p', 'v-verdict v-headline', said)), card, ablation, speed, ...extra, ...view.notes.map((note) => el('p', 'v-note', note)), source(view.paper));
  tell('');
  if (focused) { const again = [...root.querySelectorAll('input')].find((input) => input.value === focused); if (again) again.focus({ preventScroll: true }); }
  paint();
}

function source(paper) {
  const line = el('p', 'v-note'), link = el('a', 'v-open', paper.label);
  Object.assign(link, { href: paper.href, target: '_blank', rel: 'noopener' });
  line.append(link);
  return line;
}

/* Who is who: the figure's marks with their names, in words that wrap like words. */
const MARKS = { circle: '●', 'circle-open': '○', x: '✖', square: '■', diamond: '◆', 'triangle-up': '▲', 'triangle-down': '▼', cross: '✚', pentagon: '⬟', hexagon: '⬢', 'star-triangle-up': '★' };
function who(figure) {
  const list = el('ul', 'v-who');
  figure.data.forEach((trace) => {
    const item = el('li'), mark = el('i');
    mark.textContent = MARKS[trace.marker.symbol] || '●';
    mark.style.color = themed(trace.marker.color);
    item.append(mark, el('span', '', trace.name));
    list.append(item);
  });
  return list;
}

function paint() {
  const canvas = root.querySelector('.v-plot'), heat = root.querySelector('.v-heat');
  if (!canvas || !state.view) return;
  root.querySelector('.v-who')?.replaceWith(who(state.view.frontier.figure));
  canvas.hidden = !state.view.frontier.figure.data.length;
  if (heat) drawPlot(heat, { id: 'heat' + state.view.lang, spec: state.view.sensitivity.figure });
  if (!canvas.hidden) drawPlot(canvas, { id: 'frontier' + state.view.lang, spec: state.view.frontier.figure, chosen: (row) => {
    const dot = state.view.frontier.dots[row];
    if (dot) { if (lab.go) intoLab(null, dot.cfg); else location.search = dot.href; } else tell(state.view.frontier.no_point);
  } });
}

function table(part) {
  const frame = el('div', 'v-scroll');
  frame.tabIndex = 0;
  frame.setAttribute('role', 'region');
  frame.setAttribute('aria-label', (part.title || part.lead || '').replace(/<[^>]*>/g, ''));
  const grid = el('table'), head = el('thead'), body = el('tbody'), row = el('tr');
  part.columns.forEach((name) => { const cell = el(name ? 'th' : 'td', '', name); if (name) cell.scope = 'col'; row.append(cell); });
  head.append(row);
  part.rows.forEach((cells) => {
    const line = el('tr');
    cells.forEach((cell, i) => {
      const node = el(i ? 'td' : 'th');
      if (!i) node.scope = 'row';
      if ('open' in cell) {
        if (cell.open) { const link = el('a', 'v-open', cell.text); link.href = cell.open.href; link.onclick = (event) => intoLab(event, cell.open.cfg); node.append(link); }
        else node.append(el('small', '', cell.else));
      } else {
        node.innerHTML = cell.text;
        if (cell.quiet) node.className = 'v-quiet';
        if (cell.small) node.append(el('small', '', cell.small));
      }
      line.append(node);
    });
    body.append(line);
  });
  grid.append(head, body);
  frame.append(grid);
  return frame;
}

lab.on('lang', (lang) => { if (lang === state.lang) return; state.lang = lang; if (ask.begun) ask(); });
new MutationObserver(() => visible() && paint()).observe(document.body, { attributes: true, attributeFilter: ['class'] });
looked('compare', ask);
