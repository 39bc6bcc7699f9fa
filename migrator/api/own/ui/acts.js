// SPDX-License-Identifier: Apache-2.0

// What the page can request: each act asks first, in the page itself, and sends its request once.
// What is shown may be old, so an act reads its noun again before it sends, and refuses if the status is another one.

import {Refused, get, plural, send, session, settings} from './api.js';
import {$, make, setText} from './rows.js';

let others = async () => []; // what is in progress, in sentences
let done = () => {};
let sending = false; // the question stays until its answer is known
let clicks = 0; // only the newest click asks

/** Let the acts be offered. `inProgress` returns what else is in progress; `after` is called when one was sent. */
export function enableActs(inProgress, after) {
  others = inProgress;
  done = after;
  for (const element of document.querySelectorAll('[data-acts]')) element.hidden = !settings.acts;
}

/** A button that asks `question()`, which returns what `ask` needs; nothing if the page does not act. */
export function act(label, name, question) {
  if (!settings.acts) return [];
  const button = make('button', {type: 'button', 'aria-label': `${label}: ${name}`, 'aria-haspopup': 'dialog'}, label);
  button.addEventListener('click', async () => {
    clicks += 1;
    const [mine, user] = [clicks, session()];
    let asked;
    try {
      asked = await question();
      asked = {...asked, lines: [...asked.lines, ...await others()]};
    } catch (error) {
      asked = {title: `${label}: ${name}`, lines: [], button: null, refused: error.message};
    }
    // A question that comes late must not take the place of another one under the cursor.
    if (mine === clicks && user === session() && !$('question').open) ask(asked);
  });
  return [button];
}

/** Whether an error does not say what became of the request: no answer, or that of a proxy. */
const isLost = (error) => error.status === 0 || error.status >= 500;

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
  $('question-lines').replaceChildren(...lines.map((line) => make('li', {}, line)));
  setText(yes, button);
  yes.hidden = !button;
  setText(no, button ? 'Leave it as it is' : 'Close');
  say(refused ?? '');
  busy(false);
  yes.onclick = async () => {
    if (sending) return;
    sending = true;
    busy(true);
    say('One moment …', false);
    let isSent = false;
    try {
      const news = await changed();
      if (news !== null) throw new Refused(-2, `It has changed since it was shown: ${news}. Nothing was sent.`);
      isSent = true;
      await request();
      dialog.close();
      setText($('said'), `${title}: requested.`);
    } catch (error) {
      // It is not sent again: an answer may have been lost after the request was done.
      const end = !isSent ? 'Nothing was sent.' : isLost(error) ? 'The request may have arrived: look before you repeat it.' : '';
      say(error.message.includes('Nothing was sent.') ? error.message : `${error.message} ${end}`.trim());
      yes.hidden = true;
      setText(no, 'Close');
    }
    sending = false;
    busy(false);
    done();
  };
  no.onclick = () => dialog.close();
  dialog.oncancel = (event) => { if (sending) event.preventDefault(); };
  dialog.showModal();
  no.focus();
}

// --- drains ----------------------------------------------------------------------------------------------------------

const totalOf = (drain) => Object.values(drain.guests).reduce((sum, number) => sum + number, 0);
const path = (uuid) => `drains/${encodeURIComponent(uuid)}`;

const OF_DRAIN = {
  pause: ['Pause', 'The drain requests no further migrations. Those in progress go on.'],
  resume: ['Resume', 'The drain requests migrations again.'],
  cancel: ['Cancel', 'This aborts its migrations that do not run yet, and enables the host if the drain has disabled it.'],
  restore: ['Restore', 'This enables the host if the drain has disabled it, and brings back the guests that the drain has moved.'],
  retry: ['Retry', 'This begins a new drain with the same request, for the guests that are left.'],
};

/** Which acts a drain permits now. */
function permitted(drain) {
  if (drain.ended_at !== null) {
    if (drain.is_evacuation) return [];
    const left = totalOf(drain) - drain.guests.moved - drain.guests.gone;
    const again = drain.direction === 'away' && (left || drain.status === 'incomplete') ? ['retry'] : [];
    return drain.status === 'restored' ? [] : [...again, 'restore'];
  }
  const isHeld = ['paused', 'interrupted'].includes(drain.status);
  return drain.status === 'cancelling' ? [] : [isHeld ? 'resume' : 'pause', 'cancel'];
}

function questionOfDrain(name, drain) {
  const [label, resumes] = OF_DRAIN[name];
  const effect = name === 'resume' && drain.was ? `A process of its own goes on with it: it was ${drain.was}.` : resumes;
  return {
    title: `${label} the drain of ${drain.host}`,
    lines: [
      `${drain.host}: the drain is ${drain.status}, ${drain.guests.moved} of ${plural(totalOf(drain), 'guest')} ${drain.direction === 'back' ? 'back' : 'moved'}.`, effect,
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
    lines: [`${guestOf(one)} stays on ${one.source}, unless it has moved before. The migration is ${one.status}, to ${one.destination ?? 'a host that is not chosen yet'}.`],
    button: 'Abort the migration',
    changed: changedMigration(one),
    send: () => send('DELETE', `../../v2.1/servers/${one.instance_uuid}/migrations/${one.id}`),
  };
}

function questionOfRetry(one) {
  if (!one.stuck_reason) throw new Refused(-2, `The migration of ${guestOf(one)} is no longer stuck.`);
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
  const {servers, servers_links: more} = await get('../../v2.1/servers/detail', {all_tenants: 1, host});
  if (more) throw new Refused(-2, `${host} has more than ${servers.length} guests. Evacuate them by commands.`);
  return servers.map(({id, name}) => ({id, name}));
}

async function questionOfEvacuation(name) {
  const guests = await guestsOf(name);
  const ids = guests.map(({id}) => id).sort().join();
  return {
    title: `Evacuate ${name}`,
    lines: [
      `${name} must have no power, or no network to storage and guests. If one of its guests still runs, two copies write to the same disks.`,
      `This starts ${plural(guests.length, 'guest')} of ${name} on other hosts: ${guests.map((one) => one.name).join(', ')}. Those that are shut off stay shut off.`,
    ],
    button: `${name} is fenced: evacuate ${plural(guests.length, 'guest')}`,
    changed: async () => {
      const {services: [service]} = await get('services', {host: name, binary: 'nova-compute'});
      if (!service?.forced_down) return `${name} is not forced down any more`;
      if (service.last_seen_up !== null && service.down_since === null) return `${name} reports again`;
      return (await guestsOf(name)).map(({id}) => id).sort().join() === ids ? null : `${name} has other guests`;
    },
    send: async () => {
      const [refused, lost, user] = [[], [], session()];
      for (const {id, name: guest} of guests) {
        if (user !== session()) throw new Refused(-1, 'The token was forgotten meanwhile.');
        try {
          await send('POST', `../../v2.1/servers/${id}/action`, {evacuate: {}});
        } catch (error) {
          (isLost(error) ? lost : refused).push(`${guest}: ${error.message}`);
        }
      }
      const accepted = guests.length - refused.length - lost.length;
      if (!refused.length && !lost.length) return;
      const unknown = lost.length ? ` Not known of ${lost.length}, which may have arrived: look before you repeat them. ` : ' ';
      throw new Refused(-2, `${accepted} of ${guests.length} were accepted.${unknown}${[...lost, ...refused].join(' ')}`);
    },
  };
}

/** The acts of a line of what needs an operator. */
export function actsOfLine(line) {
  if (line.kind === 'stuck' && line.migration_uuid) {
    return act('Retry', line.instance_name ?? line.instance_uuid, async () => (
      questionOfRetry((await get(`migrations/${line.migration_uuid}`)).migration)));
  }
  if (line.kind === 'forced-down' && line.failed) return act('Evacuate', line.host, () => questionOfEvacuation(line.host));
  if (line.is_evacuation) return []; // it is typed again
  const names = {'drain-incomplete': ['retry', 'restore'], 'drain-paused': ['resume'], 'host-disabled': ['restore']}[line.kind] ?? [];
  return names.flatMap((name) => act(OF_DRAIN[name][0], `the drain of ${line.host}`, async () => (
    questionOfDrain(name, (await get(path(line.drain_uuid))).drain))));
}
