// SPDX-License-Identifier: Apache-2.0

// Elements, tables that keep one row for each key, and the pages of a list.

import {ROOT} from './api.js';

export const $ = (id) => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';

export function make(name, attributes = {}, ...children) {
  const element = name in {svg: 1, rect: 1, line: 1, text: 1, title: 1}
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function setText(element, text) {
  const wanted = text ?? '';
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function setClass(element, name) {
  if (element.getAttribute('class') !== name) element.setAttribute('class', name);
}

/** The rows of one table or list: one element for each key. */
export class Rows {
  constructor(parent, empty, build, fill) {
    Object.assign(this, {parent, empty, build, fill, known: new Map()});
  }

  /** Name each cell by its column, for a narrow window that has no room for columns. */
  label(row) {
    const labels = this.parent.dataset.labels?.split('|') ?? [];
    labels.forEach((text, at) => row.children[at].setAttribute('data-label', text));
  }

  show(items, keyOf) {
    const left = new Set(this.known.keys());
    let next = this.parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      const data = JSON.stringify(item);
      let row = this.known.get(key);
      left.delete(key);
      if (!row) {
        row = {element: this.build(item), data: null};
        this.label(row.element);
        row.element.dataset.key = key;
        this.known.set(key, row);
      }
      if (row.data !== data) {
        this.fill(row.element, item);
        row.data = data;
      }
      if (row.element === next) next = next.nextElementSibling;
      else this.parent.insertBefore(row.element, next);
    }
    for (const key of left) {
      this.known.get(key).element.remove();
      this.known.delete(key);
    }
    this.parent.querySelector('.empty')?.remove();
    if (!items.length && this.empty) {
      const columns = this.parent.parentElement.querySelector('thead').querySelectorAll('th').length;
      this.parent.append(make('tr', {class: 'empty'}, make('td', {colspan: columns}, this.empty)));
    }
  }
}

/** Show buttons that depend on some data. Those of the same data stay, and so does the focus. */
export function showActs(box, data, make_) {
  if (box.dataset.of === data) return;
  box.dataset.of = data;
  box.replaceChildren(...make_());
}

/** A row of cells with these classes. The first cell is the header of the row. */
export function cells(...classes) {
  const [first, ...others] = classes;
  const header = make('th', {class: first, scope: 'row'});
  return make('tr', {}, header, ...others.map((name) => make('td', {class: name})));
}

/** The pages of a list, with the buttons between them. */
export class Pages {
  constructor(element, again) {
    this.markers = [null];
    this.back = make('button', {type: 'button'}, '‹ Previous page');
    this.label = make('span', {'aria-live': 'polite'});
    this.on = make('button', {type: 'button'}, 'Next page ›');
    element.append(this.back, this.label, this.on);
    this.element = element;
    this.again = again;
    this.next = null;
    this.back.addEventListener('click', () => this.turn(() => this.markers.pop()));
    this.on.addEventListener('click', () => this.turn(() => this.markers.push(this.next)));
  }

  get marker() { return this.markers.at(-1); }

  first() { this.markers = [null]; }

  turn(step) {
    step();
    this.again();
  }

  show(links) {
    this.next = links?.length ? new URL(links[0].href, ROOT).searchParams.get('marker') : null;
    this.element.hidden = this.markers.length === 1 && this.next === null;
    this.back.disabled = this.markers.length === 1;
    this.on.disabled = this.next === null;
    setText(this.label, `Page ${this.markers.length}`);
  }
}

export function command(text) {
  const line = make('p', {class: 'command'}, make('code', {}, text));
  if (navigator.clipboard) {
    const button = make('button', {type: 'button', 'aria-label': `Copy: ${text}`}, 'Copy');
    button.addEventListener('click', async () => {
      await navigator.clipboard.writeText(text);
      setText($('said'), 'Copied.');
    });
    line.append(button);
  }
  return line;
}

export function status(element, phase, word) {
  if (!element.firstElementChild) element.append(make('span'));
  setClass(element.firstElementChild, `status ${phase}`);
  setText(element.firstElementChild, word);
}
