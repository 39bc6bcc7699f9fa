// SPDX-License-Identifier: Apache-2.0

// The bars of a timeline. Each phase has a shape of its own, so that its colour is never the only sign.

import {clock, parse} from './api.js';
import {$, make, setText} from './rows.js';

/** The status of a migration or of a guest of a drain -> its phase. */
export const PHASES = {
  accepted: 'waiting', queued: 'waiting', preparing: 'preparing', running: 'moving', 'running (post-copy)': 'moving',
  'post-migrating': 'switched', done: 'switched', completed: 'tidied', failed: 'failed', error: 'failed',
  'pre-migrating': 'preparing', migrating: 'moving', finished: 'switched', confirming: 'switched', confirmed: 'tidied',
  reverting: 'moving', reverted: 'cancelled',
  cancelled: 'cancelled', waiting: 'waiting', blocked: 'blocked', moving: 'moving', moved: 'tidied', gone: 'gone',
};
export const WORDS = {
  waiting: 'waiting', preparing: 'preparing', moving: 'moving', switched: 'switched over', tidied: 'completed',
  failed: 'failed', cancelled: 'cancelled', expected: 'expected',
};

/** Milliseconds between two marks of an axis. */
const STEPS = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400].map((one) => (
  one * 1000));

/** The axis of a drain. It grows by whole steps, so that the bars of ended guests rarely change, and ends with it. */
export function axisOf(from, until, isEnded) {
  const wanted = Math.max(until - from, isEnded ? 1000 : 20000) * 1.02;
  const step = STEPS.find((one) => wanted / one <= 8) ?? 86400000 * Math.ceil(wanted / 86400000 / 8);
  const count = Math.ceil(wanted / step);
  // What has ended needs no room behind it.
  return {from, step, count, length: isEnded ? wanted : step * count};
}

const percent = (value, axis) => Math.min(100, Math.max(0, (value - axis.from) * 100 / axis.length));

/** Where the marks of an axis are, in percent. */
export const marksOf = (axis) => Array.from({length: axis.count}, (_, at) => at * axis.step * 100 / axis.length);

export function showAxis(axis) {
  const labels = Array.from({length: axis.count}, (_, at) => clock(axis.from + at * axis.step).slice(0, 16));
  const element = $('axis');
  while (element.children.length > labels.length) element.lastElementChild.remove();
  while (element.children.length < labels.length) element.append(make('span'));
  const marks = [...marksOf(axis), 100];
  labels.forEach((label, at) => {
    setText(element.children[at], label);
    element.children[at].style.flexGrow = marks[at + 1] - marks[at];
  });
}

/** What has happened to a guest, as [phase, from, until]; a phase that goes on has until = null. */
export function phasesOf(member, drain) {
  const began = parse(drain.began_at ?? drain.created_at);
  const found = [];
  const migrations = member.migrations.filter((one) => drain.direction !== 'back' || parse(one.created_at) >= began);
  let last = null;
  for (const migration of migrations) {
    if (last !== null) found.push(['waiting', last, parse(migration.created_at)]);
    migration.statuses.forEach(({status: name, at}, index) => {
      const next = migration.statuses[index + 1];
      found.push([PHASES[name], parse(at), next ? parse(next.at) : null]);
    });
    last = migration.statuses.length ? parse(migration.statuses.at(-1).at) : null;
  }
  if (['waiting', 'blocked'].includes(member.status)) found.push(['waiting', last ?? began, null]);
  return found;
}

export const ENDED = {tidied: '✓', failed: '✕', cancelled: '✕'};

export function shapes(phases, axis, until, isStuck) {
  const found = [];
  for (const [phase, from, to] of phases) {
    const x = percent(from, axis);
    const width = Math.max(percent(to ?? until, axis) - x, 0.3);
    if (phase in ENDED) {
      found.push(['text', {class: phase, x: `${Math.min(x + 0.3, 96)}%`, y: 15}, ENDED[phase]]);
    } else if (phase === 'waiting') {
      found.push(['line', {class: phase, x1: `${x}%`, x2: `${x + width}%`, y1: 10, y2: 10}]);
    } else {
      const [y, height] = {preparing: [6, 8], switched: [4, 12], expected: [5, 10]}[phase] ?? [3, 14];
      found.push(['rect', {class: phase, x: `${x}%`, width: `${width}%`, y, height}]);
    }
  }
  if (isStuck) found.push(['text', {class: 'failed', x: `${Math.min(percent(until, axis) + 0.5, 96)}%`, y: 15}, '!']);
  return found;
}

/** Write shapes into an SVG, and touch only what differs. */
export function draw(svg, wanted, label) {
  let node = svg.firstElementChild;
  if (label !== undefined) {
    if (!node) svg.append(make('title'));
    setText(svg.firstElementChild, label);
    node = svg.firstElementChild.nextElementSibling;
  }
  for (const [name, attributes, text] of wanted) {
    if (node?.localName !== name) {
      const fresh = make(name);
      svg.insertBefore(fresh, node);
      node = fresh;
    }
    for (const [key, value] of Object.entries(attributes)) {
      if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
    }
    if (text !== undefined) setText(node, text);
    node = node.nextElementSibling;
  }
  while (node) {
    const next = node.nextElementSibling;
    node.remove();
    node = next;
  }
}

export function showLegend() {
  const axis = {from: 0, step: 100, count: 1, length: 100};
  for (const [phase, word] of Object.entries(WORDS)) {
    if (phase === 'cancelled') continue;
    const svg = make('svg', {class: 'bar', 'aria-hidden': 'true'});
    draw(svg, shapes([[phase, phase in ENDED ? 30 : 2, 98]], axis, 98, false));
    $('legend').append(make('li', {}, svg, word));
  }
}
