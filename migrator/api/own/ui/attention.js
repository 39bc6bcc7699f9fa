// SPDX-License-Identifier: Apache-2.0

// What needs an operator: one request, and the lines as the API has made them.

import {actsOfLine} from './acts.js';
import {clock, get, parse, plural, settings} from './api.js';
import {$, Rows, command, make, setClass, setText} from './rows.js';

const LINES = 50; // shown at a time

let first = 0; // of the lines that are shown

/** Show commands. Those that are there already stay, and so does the focus on their buttons. */
function showCommands(box, commands) {
  const shown = [...box.querySelectorAll('code')].map((code) => code.textContent);
  if (shown.join('\n') !== commands.join('\n')) box.replaceChildren(...commands.map(command));
}

const rows = new Rows($('trouble-list'), null,
  () => make('li', {}, make('h3'), make('p'), make('p', {class: 'acts'}), make('div'), make('p', {class: 'quiet'}), make('div')),
  (item, line) => {
    const [heading, paragraph, acts, box, more, last] = item.children;
    setClass(item, line.failed ? 'bad' : '');
    setText(heading, line.title);
    setText(paragraph, `${line.since ? `Since ${clock(parse(line.since))} UTC. ` : ''}${line.text}`);
    acts.replaceChildren(...actsOfLine(line));
    acts.hidden = !acts.children.length;
    showCommands(box, line.commands);
    setText(more, line.otherwise?.text);
    more.hidden = !line.otherwise;
    showCommands(last, line.otherwise?.commands ?? []);
  });

/** Load and show the lines, and return all of them, or null if they are too many to be all known. `turned` is called when the operator wants other ones. */
export async function loadAttention(turned) {
  let answer;
  try {
    answer = await get('attention', {limit: first + LINES});
  } catch (error) {
    $('trouble-none').hidden = true; // it is not known now
    throw error;
  }
  const {attention, count} = answer;
  if (first >= attention.length && first > 0) { // they were mended, or are more than the API gives at once
    first = 0;
    return loadAttention(turned);
  }
  rows.show(attention.slice(first), (line) => line.id);
  const pages = $('trouble-pages');
  pages.hidden = count <= LINES;
  if (!pages.hidden) showPages(pages, count, turned);
  const hidden = Math.max(0, Math.min(count, first + LINES) - attention.length);
  const note = $('trouble-note');
  setText(note, hidden ? `${plural(hidden, 'line')} more${settings.of_services ? ': migrator-manage status' : ''}` : '');
  note.hidden = !hidden;
  $('trouble-none').hidden = count > 0;
  setText($('trouble-title'), count ? `Attention (${count})` : 'Attention');
  document.title = count ? `(${count}) migrator` : 'migrator';
  return count <= LINES ? attention : null;
}

function showPages(element, length, turned) {
  if (!element.children.length) {
    const back = make('button', {type: 'button'}, '‹ Previous lines');
    const on = make('button', {type: 'button'}, 'Next lines ›');
    back.addEventListener('click', () => { first -= LINES; turned(); });
    on.addEventListener('click', () => { first += LINES; turned(); });
    element.append(back, make('span', {'aria-live': 'polite'}), on);
  }
  const [back, label, on] = element.children;
  back.disabled = first === 0;
  on.disabled = first + LINES >= length;
  setText(label, `${first + 1} to ${Math.min(first + LINES, length)} of ${length}`);
}

export function forgetAttention() {
  first = 0;
  $('trouble-none').hidden = true;
  setText($('trouble-title'), 'Attention');
  rows.show([], String);
}
