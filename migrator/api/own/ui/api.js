// SPDX-License-Identifier: Apache-2.0

// The requests to /migrator/v1, and the times and sizes of its answers in words. The token is kept only here.

export const ROOT = new URL('.', document.baseURI);

let token = null;
let tokens = 0; // how often another one was entered, or forgotten
let lag = 0; // milliseconds by which the clock of the API is ahead of this browser's

export function setToken(text) {
  token = text;
  tokens += 1;
}

/** A number that changes with the token: what one user has begun must not go on as another. */
export const session = () => tokens;

export const hasToken = () => token !== null;

/** What the API says of itself: whether the page acts, whether the drains are those of a Nova, whether there are services, and how commands about drains begin. */
export const settings = {acts: false, of_nova: false, of_services: true, drain_command: ''};

export async function loadSettings() {
  try {
    Object.assign(settings, await get('ui/settings.json'));
  } catch {
    settings.acts = false; // the page shows all the same
  }
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The nova version of what the page requests below /v2.1. An evacuated guest is started in it. */
const VERSION = 'compute 2.90';

export async function get(path, query = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) if (value !== null) url.searchParams.set(name, value);
  return answered(url, {});
}

/** Send a request that changes something, once; the answer may have no body. */
export async function send(method, path, body) {
  const more = body === undefined ? {} : {body: JSON.stringify(body)};
  return answered(new URL(path, ROOT), {method, ...more});
}

async function answered(url, request) {
  const used = token;
  let response;
  try {
    response = await fetch(url, {
      headers: {
        'X-Auth-Token': used, Accept: 'application/json', 'OpenStack-API-Version': VERSION,
        ...(request.body ? {'Content-Type': 'application/json'} : {}),
      },
      cache: 'no-store', credentials: 'omit', redirect: 'error', signal: AbortSignal.timeout(60000), ...request,
    });
  } catch (error) {
    throw new Refused(0, `The API does not answer (${error.message}). Check that its process runs.`);
  }
  const date = Date.parse(response.headers.get('Date'));
  if (date) lag = Math.abs(date - Date.now()) < 2000 ? 0 : date - Date.now();
  let document_ = null;
  try {
    document_ = await response.json();
  } catch {
    // A proxy answers errors without JSON. The status says enough.
  }
  if (used !== token) throw new Refused(-1, 'The token was forgotten meanwhile.');
  if (response.ok && (document_ || request.method)) return document_;
  if (response.status === 401) {
    throw new Refused(401, settings.of_services
      ? 'The token is not valid, or has expired. Get another one: openstack token issue -f value -c id'
      : 'The token is not valid. Open the URL that migrator-drain serve has printed at its last start.');
  }
  const fault = document_ && Object.values(document_)[0];
  const message = fault?.message ?? `The API answered ${response.status} ${response.statusText}.`;
  throw new Refused(response.status, response.status === 403 && !request.method
    ? `This token does not allow it. Use an administrator's token. (${message})` : message);
}

const SILENCE = 10000; // milliseconds without a word after which a stream counts as broken; the API says one each 3 s

/**
 * Wait until something happens to a migration or a drain, and return true; false if the API ends the stream before.
 * `opened` is called when the stream has begun: it has all that happens from then on. `ending` ends it.
 */
export async function nextEvent(opened, ending) {
  let timer = null;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => ending.abort(), SILENCE);
  };
  try {
    wait();
    const response = await fetch(new URL('events', ROOT), {
      headers: {'X-Auth-Token': token, Accept: 'text/event-stream'}, cache: 'no-store', credentials: 'omit',
      redirect: 'error', signal: ending.signal,
    });
    const isStream = response.ok && response.headers.get('Content-Type')?.startsWith('text/event-stream');
    if (!isStream) throw new Refused(response.status, 'This is no stream of events.');
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ''; ;) {
      const {value, done} = await reader.read();
      if (done) return false;
      wait();
      if (!text) opened();
      text += value;
      if (text.includes('\nevent: ')) return true;
    }
  } finally {
    clearTimeout(timer);
  }
}

// --- times and sizes -------------------------------------------------------------------------------------------------

export const now = () => Date.now() + lag;
export const parse = (text) => (text ? Date.parse(`${text.replace(/(\.\d{3})\d+/, '$1')}Z`) : null);

export function clock(milliseconds) {
  if (milliseconds === null) return '';
  const text = new Date(milliseconds).toISOString();
  const today = new Date(now()).toISOString().slice(0, 10);
  return text.slice(0, 10) === today ? text.slice(11, 19) : `${text.slice(0, 10)} ${text.slice(11, 16)}`;
}

export function span(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function size(bytes) {
  const gib = bytes / 2 ** 30;
  return gib >= 1 ? `${gib.toFixed(1)} GiB` : `${Math.round(bytes / 2 ** 20)} MiB`;
}

/** An expected time in words. It is as likely to be before p50 as after it. In four of five cases it is before p80. */
export function band(expected) {
  if (!expected) return '';
  const [middle, late] = [expected.p50, expected.p80].map((text) => clock(parse(text)));
  return middle === late ? `about ${middle}` : `about ${middle}, likely by ${late}`;
}

export function plural(count, word) {
  return `${count} ${word}${count === 1 ? '' : 's'}`;
}
