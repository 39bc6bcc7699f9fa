// SPDX-License-Identifier: Apache-2.0

// The page reads /migrator/v1 and shows the answers. What it requests is in acts.js. Every text is inserted as text, never
// as HTML. A table keeps one row for each key and writes only to the rows whose data has changed.

import {actsOfDrain, enableActs} from './acts.js';
import {
  Refused, band, clock, get, hasToken, loadSettings, nextEvent, now, parse, plural, setToken, settings, size, span,
} from './api.js';
import {forgetAttention, loadAttention} from './attention.js';
import {ENDED, PHASES, WORDS, axisOf, draw, marksOf, phasesOf, shapes, showAxis, showLegend} from './bars.js';
import {forgetMigrations, loadMigration, progress} from './migration.js';
import {forgetPlan, offerHosts} from './plan.js';
import {$, Pages, Rows, cells, make, setText, showActs, status} from './rows.js';

const EVERY = 3000; // milliseconds from the end of one round of requests to the next one
const REFUSED = 30000; // milliseconds until another stream of events is tried
const PAGE = 50; // rows of a page
const NEWS = 30; // lines

const MOVING = ['running', 'running (post-copy)'];
let timer = null;
let stream = null; // of events, while nothing moves: what ends it
let streamAt = 0; // when the next one may begin
const DAY = 86400000; // milliseconds
const ask = {drain: null, filter: '', idle: false, migration: null, host: null, ended: false};
const seen = {drains: new Map(), trouble: null};

// --- drains ----------------------------------------------------------------------------------------------------------

const isEnded = (drain) => drain.ended_at !== null;
const totalOf = (drain) => Object.values(drain.guests).reduce((sum, number) => sum + number, 0);
const inTrouble = (drain) => drain.guests.blocked + drain.guests.failed;

function summary(drain) {
  const words = Object.entries(drain.guests).filter(([name, number]) => number && name !== 'moved');
  return `${drain.guests.moved} of ${totalOf(drain)} ${drain.direction === 'back' ? 'back' : 'moved'}`
    + words.map(([name, number]) => `, ${number} ${{moving: 'on the way'}[name] ?? name}`).join('');
}

function drainStatus(drain) {
  const bad = ['incomplete', 'interrupted'].includes(drain.status);
  return {
    phase: bad ? 'failed' : {completed: 'tidied', restored: 'tidied', cancelled: 'cancelled', accepted: 'waiting',
      paused: 'waiting'}[drain.status] ?? 'moving',
    word: bad ? `! ${drain.status}` : drain.status,
  };
}

const drainRows = new Rows($('drain-rows'), 'No drain yet.', () => {
  const row = cells('', '', '', 'text', 'number', 'number');
  const button = make('button', {type: 'button', 'aria-controls': 'guests'});
  button.addEventListener('click', () => choose(row.dataset.key));
  row.children[0].append(button);
  row.children[2].append(make('span'), make('svg', {class: 'share', 'aria-hidden': 'true'}));
  return row;
}, (row, {drain, chosen}) => {
  const [host, state, guests, why, began, end] = row.children;
  setText(host.firstElementChild, drain.host);
  host.firstElementChild.setAttribute('aria-expanded', chosen);
  host.firstElementChild.setAttribute('aria-label', `Guests of the drain of ${drain.host}`);
  const {phase, word} = drainStatus(drain);
  status(state, phase, word);
  setText(guests.firstElementChild, summary(drain));
  const total = totalOf(drain) || 1;
  let x = 0;
  const bars = [['rect', {class: 'all', x: 0, y: 0, width: '100%', height: 8}]];
  const {moved, gone, moving} = drain.guests;
  for (const [name, number] of [['moved', moved + gone], ['busy', moving], ['bad', inTrouble(drain)]]) {
    const width = number * 100 / total;
    bars.push(['rect', {class: name, x: `${x}%`, y: 0, width: `${width}%`, height: 8}]);
    x += width;
  }
  draw(guests.lastElementChild, bars);
  const now_ = moving ? `${plural(moving, 'guest')} on the way.` : 'No guest is on its way.';
  setText(why, drain.message ?? drain.waits_for ?? (isEnded(drain) ? '' : now_));
  setText(began, clock(parse(drain.began_at ?? drain.created_at)));
  const deadline = drain.deadline ? `deadline ${clock(parse(drain.deadline))}` : '';
  setText(end, isEnded(drain) ? clock(parse(drain.ended_at)) : deadline);
});

function choose(uuid) {
  go(ask.drain === uuid ? 'drain=none' : `drain=${uuid}`);
}

async function loadDrains() {
  const first = drainPages.marker === null;
  const [going, ended] = await Promise.all([
    first ? get('drains', {in_progress: true, limit: PAGE}) : {drains: []},
    get('drains', {in_progress: false, limit: 5, marker: drainPages.marker}),
  ]);
  const drains = [...going.drains, ...ended.drains];
  if (ask.drain === null && drains.length) ask.drain = (going.drains[0] ?? drains[0]).uuid;
  drainRows.show(drains.map((drain) => ({drain, chosen: drain.uuid === ask.drain})), ({drain}) => drain.uuid);
  drainPages.show(ended.drains_links);
  if (going.drains_links) note('drains', `More than ${PAGE} drains are in progress: these are the newest.`);
  // A link may name a drain by its host or its beginning, or one that is on no page.
  if (!['none', null].includes(ask.drain) && !drains.some((drain) => drain.uuid === ask.drain)) {
    const {drain: found} = await get(`drains/${encodeURIComponent(ask.drain)}`);
    ask.drain = found.uuid;
    if (!drains.some((drain) => drain.uuid === found.uuid)) drains.push(found);
  }
  newsOfDrains(drains);
  return drains;
}

// --- the guests of a drain -------------------------------------------------------------------------------------------

function why(member) {
  const newest = member.migrations.at(-1);
  if (newest?.stuck_reason) return `Stuck: ${newest.stuck_reason}`;
  const parts = [];
  const waitsFor = newest && member.status === 'moving' ? newest.waits_for : null;
  if (waitsFor) parts.push(`It waits ${waitsFor.replace(/\.?$/, '.')}`);
  else if (member.reason) parts.push(member.reason);
  else if (member.waits_for) parts.push(`${member.waits_for}.`);
  const left = newest?.progress.memory_remaining_bytes ?? null;
  if (member.status === 'moving' && MOVING.includes(newest?.status) && left !== null) {
    parts.push(`${size(left)} of memory left.`);
  }
  if (!isOver(member) && member.expected?.end) parts.push(`Ends ${band(member.expected.end)}.`);
  if (member.attempts > 1) parts.push(`Attempt ${member.attempts}.`);
  return parts.join(' ');
}

const isOver = (member) => ['moved', 'failed', 'gone', 'cancelled'].includes(member.status);

function guestStatus(member) {
  const newest = member.migrations.at(-1);
  if (newest?.stuck_reason) return {phase: 'failed', word: '! stuck'};
  if (member.status !== 'moving') {
    const phase = PHASES[member.status];
    return {phase, word: ['failed', 'blocked'].includes(phase) ? `! ${member.status}` : member.status};
  }
  const phase = PHASES[newest?.status] ?? 'moving';
  return {phase, word: WORDS[phase]};
}

const guestRows = new Rows($('guest-rows'), 'No guest to show.', () => {
  const row = cells('', '', 'time', '', 'text');
  row.children[2].append(make('svg', {class: 'bar', role: 'img'}));
  return row;
}, (row, {member, phases, axis, until}) => {
  const [name, state, bar, destination, reason] = row.children;
  link(name, member.name || member.instance_uuid, settings.of_nova ? null : member.migration_uuid);
  name.title = member.instance_uuid;
  const {phase, word} = guestStatus(member);
  status(state, phase, word);
  const grid = marksOf(axis).map((x) => ['line', {class: 'grid', x1: `${x}%`, x2: `${x}%`, y1: 0, y2: 20}]);
  const drawn = [...phases];
  const {start, end} = member.expected ?? {};
  if (!isOver(member) && end) drawn.push(['expected', Math.max(parse(start?.p50) ?? until, until), parse(end.p50)]);
  const words = phases.map(([one, from, to]) => {
    if (one in ENDED) return `${WORDS[one]} at ${clock(from)}`;
    return to === null ? `${WORDS[one]} since ${clock(from)}` : `${WORDS[one]} ${span(to - from)}`;
  });
  const isStuck = word === '! stuck';
  draw(bar.firstElementChild, [...grid, ...shapes(drawn, axis, until, isStuck)], words.join(', ') || 'not begun');
  setText(destination, member.destination ?? member.migrations.at(-1)?.destination);
  setText(reason, why(member));
});

const FILTERS = {
  '': 'all guests', 'ended=false': 'not ended', 'status=moving': 'moving', 'status=waiting': 'waiting',
  'status=blocked': 'blocked', 'status=failed': 'failed', 'status=moved': 'moved',
};

async function loadGuests(drains) {
  const drain = drains.find((one) => one.uuid === ask.drain);
  $('guests').hidden = !drain;
  if (!drain) return;
  if (ask.filter === '') ask.filter = totalOf(drain) > PAGE && !isEnded(drain) ? 'ended=false' : 'all';
  $('guests-filter').value = ask.filter === 'all' ? '' : ask.filter;
  const [name, value] = ask.filter.split('=');
  const query = {limit: PAGE, marker: guestPages.marker, ...(value ? {[name]: value} : {})};
  const page = await get(`drains/${encodeURIComponent(drain.uuid)}/members`, query);
  const until = isEnded(drain) ? parse(drain.ended_at) : now();
  const all = page.members.map((member) => ({member, phases: phasesOf(member, drain)}));
  const times = all.flatMap(({phases}) => phases.map(([, from]) => from));
  showActs($('guests-acts'), JSON.stringify([drain.uuid, drain.status, drain.guests]), () => actsOfDrain(drain));
  const ends = isEnded(drain) ? [] : page.members.map((member) => parse(member.expected?.end?.p80)).filter(Boolean);
  const axis = axisOf(Math.min(parse(drain.began_at ?? drain.created_at), ...times), Math.max(until, ...ends), isEnded(drain));
  showAxis(axis);
  const which = drain.include_stopped ? ', also those that are shut off' : '';
  setText($('guests-title'), `Guests of the drain of ${drain.host}${which}`);
  setText($('guests-about'), settings.drain_command && `${settings.drain_command} show ${drain.uuid}`);
  const {end, reason} = page.expected;
  setText($('guests-end'), isEnded(drain) ? '' : end ? `Expected end (UTC): ${band(end)}.` : `Expected end: ${reason}`);
  // A bar that goes on has its end in its data, so that only such rows change with the time.
  guestRows.show(all.map(({member, phases}) => ({
    member, phases, axis, until: phases.some(([phase, , to]) => to === null && !(phase in ENDED)) ? until : 0,
  })), ({member}) => member.instance_uuid);
  guestPages.show(page.members_links);
}

// --- hosts -----------------------------------------------------------------------------------------------------------

const hostRows = new Rows($('host-rows'), 'No host is busy, disabled or down.',
  () => cells('', 'text', 'number', 'number', 'number', 'number', 'number'),
  (row, host) => {
    const [name, state, running, prepared, waiting, inbound, cleanups] = row.children;
    link(name, host.name, host.name, 'host');
    const words = [host.up ? 'up' : host.forced_down ? '! forced down' : '! down'];
    if (host.drain) words.push('drain in progress');
    if (host.disabled) words.push(`disabled${host.disabled_reason ? ` (${host.disabled_reason})` : ''}`);
    setText(state, words.join(', '));
    setText(running, `${host.out.running} of ${host.out.limit}`);
    setText(prepared, String(host.out.prepared));
    setText(waiting, String(host.out.waiting));
    const {taken, bound} = host.in;
    setText(inbound, bound ? `${taken} of ${bound}` : `${taken}`);
    const {pending, blocked} = host.cleanups;
    setText(cleanups, blocked ? `${pending}, ! ${blocked} blocked` : String(pending));
  });

async function loadHosts() {
  const page = await get('hosts', {limit: PAGE, marker: hostPages.marker, busy: ask.idle ? null : true});
  hostRows.show(page.hosts, (host) => host.name);
  hostPages.show(page.hosts_links);
  return page.hosts;
}

// --- migrations ------------------------------------------------------------------------------------------------------

const migrationRows = new Rows($('migration-rows'), 'No migration.',
  () => cells('', '', '', '', 'number', 'number', 'text'),
  (row, {one, copied}) => {
    const [name, state, from, to, accepted, memory, waits] = row.children;
    link(name, one.instance_name ?? one.instance_uuid, one.uuid);
    name.title = one.uuid;
    const phase = PHASES[one.status] ?? 'waiting';
    status(state, one.stuck_reason ? 'failed' : phase, one.stuck_reason ? `! stuck, ${one.status}` : one.status);
    setText(from, one.source);
    setText(to, one.destination ?? one.requested_host ?? 'not chosen yet');
    setText(accepted, clock(parse(one.created_at)));
    setText(memory, copied);
    setText(waits, one.stuck_reason ?? one.waits_for ?? one.failure
      ?? (one.abort_requested_at ? 'an abort was requested' : ''));
  });

async function loadMigrations() {
  const which = ask.ended ? {in_progress: false, changes_since: new Date(now() - DAY).toISOString()} : {in_progress: true};
  const page = await get('migrations', {...which, host: ask.host, limit: PAGE, marker: migrationPages.marker});
  if (!page.migrations.length && migrationPages.marker !== null) {
    migrationPages.first(); // those of the last page have ended
    return loadMigrations();
  }
  migrationRows.show(page.migrations.map((one) => ({one, copied: progress(one)})), ({one}) => one.uuid);
  migrationPages.show(page.migrations_links);
  setText($('migrations-title'), `Migrations${ask.host ? ` from or to ${ask.host}` : ''}`);
  $('migrations-all').hidden = ask.host === null;
  return ask.ended ? null : page.migrations;
}

/** What is in progress, for the question before an act. */
async function inProgress() {
  const [{drains, drains_links: more}, {migrations, migrations_links: others}] = await Promise.all([
    get('drains', {in_progress: true, limit: PAGE}), get('migrations', {in_progress: true, limit: PAGE}),
  ]);
  const hosts = drains.map((drain) => `${drain.host} (${drain.status})`).join(', ');
  const ofDrains = drains.length ? `the drains of ${hosts}${more ? ' and others' : ''}` : 'no drain';
  if (!settings.of_services) return [`In progress now: ${ofDrains}.`]; // the migrations are Nova's
  return [`In progress now: ${ofDrains}; ${others ? `more than ${PAGE} migrations` : plural(migrations.length, 'migration')}.`];
}

// --- news ------------------------------------------------------------------------------------------------------------

function news(text) {
  const list = $('news-list');
  const at = new Date(now());
  list.prepend(make('li', {}, make('time', {datetime: at.toISOString()}, clock(at.getTime())), text));
  while (list.children.length > NEWS) list.lastElementChild.remove();
  $('news').hidden = false;
}

function newsOfDrains(drains) {
  for (const drain of drains) {
    const text = `${drain.status}, ${summary(drain)}`;
    const before = seen.drains.get(drain.uuid);
    if (before !== undefined && before !== text) news(`Drain of ${drain.host}: ${text}.`);
    seen.drains.set(drain.uuid, text);
  }
}

function newsOfTrouble(found) {
  if (found === null) {
    seen.trouble = null; // which of them are new is not known
    return;
  }
  const titles = new Map(found.map(({id, title}) => [id, title]));
  if (seen.trouble !== null) {
    for (const [key, title] of titles) if (!seen.trouble.has(key)) news(`${title}.`);
    for (const [key, title] of seen.trouble) if (!titles.has(key)) news(`No longer: ${title}.`);
  }
  seen.trouble = titles;
}

// --- rounds ----------------------------------------------------------------------------------------------------------

function note(section, text) {
  setText($(`${section}-note`), text);
  $(`${section}-note`).hidden = !text;
}

function complain(text) {
  setText($('error'), text);
  $('error').hidden = !text;
}

/** Load one section. What it may not see, or cannot show, is noted there, and null returned; the rest is raised. */
async function section(name, load, pages) {
  try {
    note(name, '');
    return await load();
  } catch (error) {
    if (!(error instanceof Refused) || [0, -1, 401].includes(error.status) || error.status >= 500) throw error;
    if (error.status === 400 && pages && pages.marker !== null) pages.first(); // the row before the page is gone
    note(name, error.message);
    return null;
  }
}

/** Load everything once, and return whether something may change without an event. */
async function round() {
  const [drains, migrations] = await Promise.all([
    section('drains', loadDrains, drainPages),
    ...(settings.of_services ? [section('migrations', loadMigrations, migrationPages), section('hosts', loadHosts, hostPages)] : [[]]),
  ]);
  await Promise.all([
    section('guests', () => loadGuests(drains ?? []), guestPages),
    section('migration', () => loadMigration(ask.migration)),
    section('trouble', async () => newsOfTrouble(await loadAttention(refresh))),
  ]);
  const isWhole = drainPages.marker === null && migrationPages.marker === null;
  return !(isWhole && drains?.every(isEnded) && migrations?.every((one) => one.status === 'finished'));
}

let running = false;
let again = false;

/** Load everything once, and then again and again. A call during a round lets another one follow at once. */
async function refresh() {
  clearTimeout(timer);
  if (!hasToken()) return;
  if (running) {
    again = true;
    return;
  }
  running = true;
  let isBusy = true;
  try {
    do {
      again = false;
      isBusy = await round();
    } while (again && hasToken());
    complain('');
    setText($('fresh'), `As of ${clock(now())} UTC`);
  } catch (error) {
    isBusy = true;
    if (error.status === 401) forget(error.message);
    else if (error.status !== -1) complain(`${error.message} Below is the last known state. The page tries again.`);
  } finally {
    running = false;
    plan(isBusy);
  }
}

const isPaused = () => document.hidden || $('pause').getAttribute('aria-pressed') === 'true';

/** Wait for the next round. What moves changes without an event, so the page polls; otherwise it waits for an event. */
function plan(isBusy) {
  clearTimeout(timer);
  const isWaiting = hasToken() && !isPaused();
  if (isWaiting && !isBusy && (stream || Date.now() >= streamAt)) {
    if (!stream) follow();
    return;
  }
  stopFollowing();
  if (isWaiting) timer = setTimeout(refresh, EVERY);
}

async function follow() {
  const mine = new AbortController();
  stream = mine;
  streamAt = Date.now() + EVERY; // also if each of them ends at once
  let hasHappened = true;
  try {
    // The stream begins later than the last round, so another round follows.
    hasHappened = await nextEvent(refresh, mine);
  } catch {
    if (stream === mine) streamAt = Date.now() + REFUSED; // too many, none allowed, or broken on its way
  }
  if (stream !== mine) return;
  stopFollowing();
  if (hasHappened) refresh();
  else plan(false);
}

function stopFollowing() {
  stream?.abort();
  stream = null;
}

const drainPages = new Pages($('drains-pages'), refresh);
const guestPages = new Pages($('guests-pages'), refresh);
const hostPages = new Pages($('hosts-pages'), refresh);
const migrationPages = new Pages($('migrations-pages'), refresh);

// --- where the page is -----------------------------------------------------------------------------------------------

/** A link within the page; without a name to lead to, only the text. */
function link(cell, text, to, kind = 'migration') {
  const wanted = to ? `#${kind}=${encodeURIComponent(to)}` : null;
  let inner = cell.firstElementChild;
  if (!inner || (inner.localName === 'a') !== (wanted !== null)) {
    inner = make(wanted ? 'a' : 'span');
    cell.replaceChildren(inner);
  }
  if (wanted && inner.getAttribute('href') !== wanted) inner.setAttribute('href', wanted);
  setText(inner, text);
}

/** Go to a place within the page, also if it is there already. */
function go(place) {
  if (location.hash === `#${place}`) arrive();
  else location.hash = place;
}

/** Show what the address names: #drain=UUID, #migration=UUID, or #host=NAME. */
function arrive() {
  if (takeToken()) return;
  const [, kind, text] = /^#(drain|migration|host)=(.+)$/.exec(location.hash) ?? [];
  if (!kind || !hasToken()) return;
  let name;
  try {
    name = decodeURIComponent(text);
  } catch {
    return; // it is no address of this page
  }
  if (kind === 'drain') {
    Object.assign(ask, {drain: name, filter: ''});
    guestPages.first();
  } else if (kind === 'migration') {
    ask.migration = name;
  } else {
    ask.host = name;
    migrationPages.first();
  }
  refresh().then(() => $({drain: 'guests', migration: 'migration', host: 'migrations'}[kind]).scrollIntoView({block: 'nearest'}));
}

/** Find what a name means: a host, a migration or its guest, or a drain. */
async function search(event) {
  event.preventDefault();
  const name = $('search').value.trim();
  if (!name) return;
  const kinds = [
    ...(settings.of_services ? [['hosts', 'host', 'host', 'name'], ['migrations', 'migration', 'migration', 'uuid']] : []),
    ['drains', 'drain', 'drain', 'uuid'],
  ];
  let said = settings.of_services
    ? `No host, migration or drain is found for ${name}. A guest without a migration is not found here.` : `No drain is found for ${name}.`;
  for (const [path, kind, key, id] of kinds) {
    try {
      const found = await get(`${path}/${encodeURIComponent(name)}`);
      $('search').value = '';
      setText($('search-said'), '');
      go(`${kind}=${encodeURIComponent(found[key][id])}`);
      return;
    } catch (error) {
      if (error.status !== 404) said = error.message;
      if (![404, 403].includes(error.status)) break;
    }
  }
  setText($('search-said'), said);
}

// --- the token -------------------------------------------------------------------------------------------------------

function signedIn(is) {
  for (const element of document.querySelectorAll('[data-signed-in]')) element.hidden = !is;
  for (const element of document.querySelectorAll('[data-services]')) element.hidden = !settings.of_services;
  $('sign-in').hidden = is;
}

function forget(message) {
  setToken(null);
  plan(false);
  for (const rows of [drainRows, guestRows, hostRows, migrationRows]) rows.show([], String);
  forgetAttention();
  forgetPlan();
  forgetMigrations();
  for (const id of ['guests-acts', 'guests-title', 'guests-about', 'guests-end', 'question-lines']) $(id).replaceChildren();
  delete $('guests-acts').dataset.of;
  if ($('question').open) $('question').close();
  for (const pages of [drainPages, guestPages, hostPages, migrationPages]) pages.first();
  $('news-list').replaceChildren();
  $('news').hidden = true;
  history.replaceState(null, '', location.pathname);
  seen.drains.clear();
  Object.assign(seen, {trouble: null});
  Object.assign(ask, {drain: null, filter: '', migration: null, host: null});
  document.title = 'migrator';
  signedIn(false);
  setText($('fresh'), 'Not signed in');
  complain(message);
  $('token').focus();
}

async function signIn(text) {
  setToken(text);
  await loadSettings(); // before anything is filled that has buttons
  if (!hasToken()) return;
  try {
    await get('drains', {limit: 1});
  } catch (error) {
    if (error.status !== -1) forget(error.message);
    return;
  }
  complain('');
  enableActs(inProgress, refresh);
  signedIn(true);
  $('main').focus();
  if (settings.of_services) offerHosts().catch(() => {}); // without it the names are typed
  arrive();
  refresh();
}

/** Sign in with the token in the fragment of the URL, which is then no longer in the address. Only a page of this machine does. */
function takeToken() {
  const [, given] = /^#token=([\w-]+)$/.exec(location.hash) ?? [];
  if (!given || !['127.0.0.1', 'localhost', '[::1]'].includes(location.hostname)) return false;
  if (hasToken()) forget('');
  history.replaceState(null, '', location.pathname);
  signIn(given);
  return true;
}

$('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = $('token').value.trim();
  $('token').value = '';
  signIn(text);
});
$('forget').addEventListener('click', () => forget(''));
$('pause').addEventListener('click', ({currentTarget: button}) => {
  const pressed = button.getAttribute('aria-pressed') !== 'true';
  button.setAttribute('aria-pressed', pressed);
  if (pressed) plan(false);
  else refresh();
});
$('hosts-idle').addEventListener('change', ({currentTarget: box}) => {
  ask.idle = box.checked;
  hostPages.first();
  refresh();
});
$('guests-filter').addEventListener('change', ({currentTarget: box}) => {
  ask.filter = box.value || 'all';
  guestPages.first();
  refresh();
});
document.addEventListener('visibilitychange', () => {
  if (isPaused()) plan(false);
  else if (hasToken()) refresh();
});
$('migrations-which').addEventListener('change', ({currentTarget: box}) => {
  ask.ended = box.value === 'ended';
  migrationPages.first();
  refresh();
});
$('migrations-all').addEventListener('click', () => {
  ask.host = null;
  history.replaceState(null, '', location.pathname);
  migrationPages.first();
  refresh();
});
$('migration-close').addEventListener('click', () => {
  ask.migration = null;
  history.replaceState(null, '', location.pathname);
  refresh();
});
$('search-form').addEventListener('submit', search);
window.addEventListener('hashchange', arrive);
for (const [value, word] of Object.entries(FILTERS)) $('guests-filter').append(make('option', {value}, word));
showLegend();
$('token').focus();
takeToken();
