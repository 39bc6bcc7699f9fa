// SPDX-License-Identifier: Apache-2.0

// What the page can request: each act asks first, in the page itself, and sends its request once.
// What is shown may be old, so an act reads its noun again before it sends, and refuses if the status is another one.

import {Refused, get, plural, send} from './api.js';
import {$, make, setText} from './rows.js';

let enabled = false; // as [api] page_acts says
let others = () => []; // what is in progress, in sentences
let done = () => {};

/** Let the acts be offered. `inProgress` returns what else is in progress; `after` is called when one was sent. */
export async function enableActs(inProgress, after) {
  others = inProgress;
  done = after;
  try {
    enabled = (await get('ui/settings.json')).acts === true;
  } catch {
    enabled = false; // the page shows all the same
  }
  for (const element of document.querySelectorAll('[data-acts]')) element.hidden = !enabled;
}

/** A button that asks `question()`, which returns what `ask` needs; nothing if the page does not act. */
export function act(label, name, question) {
  if (!enabled) return [];
  const button = make('button', {type: 'button', 'aria-label': `${label}: ${name}`, 'aria-haspopup': 'dialog'}, label);
  button.addEventListener('click', async () => {
    try {
      ask(await question());
    } catch (error) {
      ask({title: `${label}: ${name}`, lines: [], button: null, refused: error.message});
    }
  });
  return [button];
}

/**
 * Show a question. `lines` say what the act does and whom it concerns. `changed` reads the state again, and returns what
 * has changed since it was shown, or null. `send` sends the request.
 */
export function ask({title, lines, button, changed, send: request, refused}) {
  const dialog = $('question');
  const [yes, no] = [$('question-yes'), $('question-no')];
  const busy = (is) => {
    yes.disabled = is;
    no.disabled = is;
  };
  const say = (text, isBad = true) => {
    setText($('question-said'), text);
    $('question-said').className = isBad ? 'refused' : 'quiet';
    $('question-said').hidden = !text;
  };
  setText($('question-title'), title);
  $('question-lines').replaceChildren(...[...lines, ...others()].map((line) => make('li', {}, line)));
  setText(yes, button);
  yes.hidden = !button;
  setText(no, button ? 'Leave it as it is' : 'Close');
  say(refused ?? '');
  busy(false);
  yes.onclick = async () => {
    busy(true);
    say('One moment …', false);
    try {
      const news = await changed();
      if (news !== null) throw new Refused(-2, `It has changed since it was shown: ${news}. Nothing was sent.`);
      await request();
      dialog.close();
      setText($('said'), `${title}: requested.`);
    } catch (error) {
      // It is not sent again: an answer may have been lost after the request was done.
      say(error.status === 0 ? `${error.message} Look at what is shown now: the request may have arrived.` : error.message);
      yes.hidden = true;
      setText(no, 'Close');
    }
    busy(false);
    done();
  };
  no.onclick = () => dialog.close();
  if (!dialog.open) dialog.showModal();
  no.focus();
}

// --- drains ----------------------------------------------------------------------------------------------------------

const totalOf = (drain) => Object.values(drain.guests).reduce((sum, number) => sum + number, 0);
const path = (uuid) => `drains/${encodeURIComponent(uuid)}`;

const OF_DRAIN = {
  pause: ['Pause', 'It requests no further migrations. Those in progress go on.'],
  resume: ['Resume', 'It requests migrations again.'],
  cancel: ['Cancel', 'Its migrations that do not run yet are aborted. The host is enabled, if the drain has disabled it.'],
  restore: ['Restore', 'The host is enabled, and the guests that the drain has moved are brought back.'],
  retry: ['Retry', 'A new drain with the same request moves the guests that this one has left.'],
};

/** Which acts a drain permits now. */
function permitted(drain) {
  if (drain.ended_at !== null) {
    const left = totalOf(drain) - drain.guests.moved - drain.guests.gone;
    const again = drain.direction === 'away' && (left || drain.status === 'incomplete') ? ['retry'] : [];
    return drain.status === 'restored' ? [] : [...again, 'restore'];
  }
  return drain.status === 'cancelling' ? [] : [drain.status === 'paused' ? 'resume' : 'pause', 'cancel'];
}

function questionOfDrain(name, drain) {
  const [label, effect] = OF_DRAIN[name];
  return {
    title: `${label} the drain of ${drain.host}`,
    lines: [
      `${drain.host}: the drain is ${drain.status}, ${drain.guests.moved} of ${plural(totalOf(drain), 'guest')} moved.`, effect,
    ],
    button: `${label} the drain`,
    changed: async () => {
      const {drain: now} = await get(path(drain.uuid));
      return now.status === drain.status ? null : `the drain is ${now.status}`;
    },
    send: () => send('POST', `${path(drain.uuid)}/action`, {[name]: null}),
  };
}

export const actsOfDrain = (drain) => permitted(drain).flatMap((name) => (
  act(OF_DRAIN[name][0], `the drain of ${drain.host}`, () => questionOfDrain(name, drain))));

// --- migrations ------------------------------------------------------------------------------------------------------

function changedMigration(one) {
  return async () => {
    const {migration: now} = await get(`migrations/${encodeURIComponent(one.uuid)}`);
    if (now.status !== one.status) return `the migration is ${now.status}`;
    if (Boolean(now.stuck_reason) !== Boolean(one.stuck_reason)) return now.stuck_reason ? 'it is stuck' : 'it is not stuck';
    return null;
  };
}

const guestOf = (one) => one.instance_name ?? one.instance_uuid;
const ABORTABLE = ['accepted', 'preparing', 'queued', 'running'];

function questionOfAbort(one) {
  return {
    title: `Abort the migration of ${guestOf(one)}`,
    lines: [`${guestOf(one)} stays on ${one.source}. The migration is ${one.status}, to ${one.destination ?? 'a host that is not chosen yet'}.`],
    button: 'Abort the migration',
    changed: changedMigration(one),
    send: () => send('DELETE', `../../v2.1/servers/${one.instance_uuid}/migrations/${one.id}`),
  };
}

function questionOfRetry(one) {
  return {
    title: `Retry the migration of ${guestOf(one)}`,
    lines: [`${guestOf(one)}, ${one.source} to ${one.destination ?? 'a host that is not chosen yet'}: ${one.stuck_reason}`,
      'Its conductor tries the step again.'],
    button: 'Retry the migration',
    changed: changedMigration(one),
    send: () => send('POST', `migrations/${encodeURIComponent(one.uuid)}/action`, {retry: {}}),
  };
}

export function actsOfMigration(one) {
  const found = [];
  if (one.stuck_reason) found.push(...act('Retry', guestOf(one), () => questionOfRetry(one)));
  else if (one.type === 'live-migration' && ABORTABLE.includes(one.status) && !one.abort_requested_at) {
    found.push(...act('Abort', guestOf(one), () => questionOfAbort(one)));
  }
  return found;
}

// --- hosts -----------------------------------------------------------------------------------------------------------

async function guestsOf(host) {
  const {servers} = await get('../../v2.1/servers/detail', {all_tenants: 1, host});
  return servers.map(({id, name}) => ({id, name}));
}

async function questionOfEvacuation(name) {
  const guests = await guestsOf(name);
  const ids = guests.map(({id}) => id).sort().join();
  return {
    title: `Evacuate ${name}`,
    lines: [
      `${name} must have no power, or no network to storage and guests. If one of its guests still runs, two copies write to the same disks.`,
      `${plural(guests.length, 'guest')} of ${name} started on other hosts: ${guests.map((one) => one.name).join(', ')}.`,
    ],
    button: `${name} is fenced: evacuate ${plural(guests.length, 'guest')}`,
    changed: async () => {
      const {attention} = await get('attention', {limit: 1000});
      const line = attention.find((one) => one.kind === 'forced-down' && one.host === name);
      if (!line?.failed) return `${name} reports again, or is not forced down any more`;
      return (await guestsOf(name)).map(({id}) => id).sort().join() === ids ? null : `${name} has other guests`;
    },
    send: async () => {
      const refused = [];
      for (const {id, name: guest} of guests) {
        try {
          await send('POST', `../../v2.1/servers/${id}/action`, {evacuate: {}});
        } catch (error) {
          refused.push(`${guest}: ${error.message}`);
        }
      }
      if (refused.length) throw new Refused(-2, `${guests.length - refused.length} of ${guests.length} were accepted. ${refused.join(' ')}`);
    },
  };
}

/** The acts of a line of what needs an operator. */
export function actsOfLine(line) {
  if (line.kind === 'stuck') {
    return act('Retry', line.instance_name ?? line.instance_uuid, async () => (
      questionOfRetry((await get(`migrations/${line.migration_uuid}`)).migration)));
  }
  if (line.kind === 'forced-down' && line.failed) return act('Evacuate', line.host, () => questionOfEvacuation(line.host));
  const names = {'drain-incomplete': ['retry', 'restore'], 'host-disabled': ['restore']}[line.kind] ?? [];
  return names.flatMap((name) => act(OF_DRAIN[name][0], `the drain of ${line.host}`, async () => (
    questionOfDrain(name, (await get(path(line.drain_uuid))).drain))));
}
