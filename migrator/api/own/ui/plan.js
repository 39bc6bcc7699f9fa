// SPDX-License-Identifier: Apache-2.0

// The plan of a drain, and its start: a drain is started only as it was planned.

import {act} from './acts.js';
import {get, plural, send, span} from './api.js';
import {$, Rows, cells, make, setText, status} from './rows.js';

const rows = new Rows($('plan-rows'), 'The host has no guest.',
  () => cells('', '', '', 'text'),
  (row, guest) => {
    const [name, state, destination, why] = row.children;
    setText(name, guest.name || guest.instance_uuid);
    status(state, guest.can_move ? 'moving' : 'blocked', guest.can_move ? 'can move' : '! cannot move');
    setText(destination, guest.destination);
    setText(why, guest.obstacle ? `${guest.obstacle.reason} ${guest.obstacle.remedy ?? ''}` : '');
  });

const stands = (plan) => JSON.stringify(plan.guests.map(({instance_uuid: id, can_move: can}) => [id, can]).sort());

function wanted() {
  const reason = $('plan-reason').value.trim();
  return {host: $('plan-host').value.trim(), include_stopped: $('plan-stopped').checked, ...(reason ? {reason} : {})};
}

const planOf = async (body) => (await send('POST', 'drains', {...body, dry_run: true})).plan;

let plans = 0; // only the newest one is shown

async function showPlan(event) {
  event.preventDefault();
  plans += 1;
  const mine = plans;
  const body = wanted();
  const said = $('plan-said');
  $('plan').hidden = true;
  said.hidden = false;
  setText(said, `Planning the drain of ${body.host} …`);
  try {
    const plan = await planOf(body);
    if (mine !== plans) return;
    setText(said, `${plan.can_move} of ${plural(plan.guests.length, 'guest')} can move.`
      + (plan.expected_seconds ? ` Expected to take ${span(plan.expected_seconds.p50 * 1000)}.` : '')
      + ' “Room at” is one of the hosts that have room; each guest is placed when it moves.');
    rows.show(plan.guests, (guest) => guest.instance_uuid);
    $('plan-start').replaceChildren(...act('Start the drain', plan.host, () => question(body, plan)));
    $('plan').hidden = false;
  } catch (error) {
    if (mine === plans && error.status !== -1) setText(said, error.message);
  }
}

function question(body, plan) {
  const left = plan.guests.filter((guest) => !guest.can_move);
  return {
    title: `Drain ${body.host}`,
    lines: [
      `This disables ${body.host}, and moves ${plan.can_move} of ${plural(plan.guests.length, 'guest')}, a few at a time.`,
      ...(left.length ? [`These cannot move now, and stay until what is in the way is mended: ${left.map((guest) => guest.name || guest.instance_uuid).join(', ')}.`] : []),
    ],
    button: 'Start the drain',
    changed: async () => (stands(await planOf(body)) === stands(plan) ? null : 'plan it again'),
    send: async () => {
      const {drain} = await send('POST', 'drains', body);
      $('plan').hidden = $('plan-said').hidden = true;
      location.hash = `drain=${drain.uuid}`;
    },
  };
}

/** Offer the names of hosts in the form. */
export async function offerHosts() {
  const {hosts} = await get('hosts', {limit: 1000});
  $('host-names').replaceChildren(...hosts.map(({name}) => make('option', {value: name})));
}

export function forgetPlan() {
  plans += 1;
  $('plan-start').replaceChildren();
  $('plan-form').reset();
  $('plan').hidden = $('plan-said').hidden = true;
  $('host-names').replaceChildren();
  rows.show([], String);
}

$('plan-form').addEventListener('submit', showPlan);
