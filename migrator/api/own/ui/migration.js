// SPDX-License-Identifier: Apache-2.0

// One migration: what it waits for, what has happened, and what comes next; and the figures of its copy.

import {clock, get, parse, size} from './api.js';
import {actsOfMigration} from './acts.js';
import {PHASES} from './bars.js';
import {$, Rows, command, make, setText, showActs, status} from './rows.js';

const seen = new Map(); // migration -> the bytes that were copied at the last look, and when; and the rate

/** How far a copy is: percent, bytes a second since the last look, and what is left. */
export function progress(one) {
  const {memory_total_bytes: total, memory_remaining_bytes: left, memory_processed_bytes: copied} = one.progress;
  if (!total) return '';
  const share = Math.floor(100 * (1 - (left ?? total) / total));
  const at = performance.now();
  if (seen.size > 2000) seen.clear();
  const before = seen.get(one.uuid);
  let rate = before?.rate ?? null;
  if (!before || copied !== before.copied) {
    if (before && copied > before.copied && at > before.at) rate = (copied - before.copied) * 1000 / (at - before.at);
    seen.set(one.uuid, {copied, at, rate});
  }
  const speed = rate && one.status === 'running' ? `, ${size(rate)}/s` : '';
  return `${share} %${speed}, ${size(left ?? total)} of ${size(total)} left`;
}

const events = new Rows($('migration-events'), null,
  () => make('li', {}, make('time'), make('span')),
  (item, {at, what}) => {
    setText(item.firstElementChild, clock(parse(at)));
    item.firstElementChild.setAttribute('datetime', `${at}Z`);
    setText(item.lastElementChild, what);
  });

/** Show a migration by its uuid; `null` closes it. */
export async function loadMigration(uuid) {
  $('migration').hidden = uuid === null;
  if (uuid === null) return;
  const name = encodeURIComponent(uuid);
  const [{migration: one}, {timeline}] = await Promise.all([get(`migrations/${name}`), get(`migrations/${name}/timeline`)]);
  const guest = one.instance_name ?? one.instance_uuid;
  setText($('migration-title'), `${one.type.replace('-', ' ')} of ${guest}`.replace(/^./, (letter) => letter.toUpperCase()));
  status($('migration-status'), one.stuck_reason ? 'failed' : PHASES[one.status] ?? 'waiting',
    one.stuck_reason ? `! stuck, ${one.status}` : one.status);
  setText($('migration-where'), `${one.source} to ${one.destination ?? one.requested_host ?? 'a host that is not chosen yet'}. `
    + `${progress(one)}`);
  const lines = [one.stuck_reason, ...timeline.waits, one.failure].filter(Boolean);
  $('migration-waits').replaceChildren(...[...new Set(lines)].map((line) => make('li', {}, line)));
  events.show(timeline.events.map((event, place) => ({...event, place})), ({place}) => String(place));
  $('migration-next').replaceChildren(...timeline.next.map((line) => make('li', {}, line)));
  showActs($('migration-acts'), JSON.stringify([one.uuid, one.status, one.stuck_reason, one.abort_requested_at]), () => actsOfMigration(one));
  const box = $('migration-commands');
  if (box.dataset.of !== one.uuid) {
    box.replaceChildren(command(`migrator-manage migration show ${one.uuid}`));
    box.dataset.of = one.uuid;
  }
}

/** Forget everything that the token has shown. */
export function forgetMigrations() {
  seen.clear();
  events.show([], String);
  for (const name of ['waits', 'next', 'acts', 'commands']) {
    $(`migration-${name}`).replaceChildren();
    delete $(`migration-${name}`).dataset.of;
  }
  for (const name of ['title', 'where', 'status']) setText($(`migration-${name}`), '');
  $('migration').hidden = true;
}
