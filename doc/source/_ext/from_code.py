# SPDX-License-Identifier: Apache-2.0

"""Directives that render parts of the code: command lines, the status graph and the saga.

``command-reference``   the subcommands and options of an argparse parser
``status-graph``        the legal moves between the statuses of a migration, as two diagrams and as a table
``saga-diagram``        the steps of a live migration and the order of their undos, as a diagram
``not-served``          the URLs and actions of nova's API that get 501, as a table
``reasons``             the kinds of waits and of being stuck, each with its sentence, as a table
"""

from __future__ import annotations

import argparse
import contextlib
import html
import importlib
import io
import os
import re

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

# argparse folds the usage line at this width, and colours it on newer Pythons
os.environ['COLUMNS'] = '100'
os.environ['NO_COLOR'] = '1'

STYLE = (
    'max-width:100%;height:auto;font-family:system-ui,sans-serif;font-size:13px;background:#fff;'
    'border:1px solid #ddd;margin:1em 0'
)
#: Fill colour of a step by its kind.
COLOURS = {'compensatable': '#e3f0e3', 'pivot': '#ffe3b3', 'retriable': '#e3ebf7'}
#: Colour of the lane of each end.
LANES = {
    'completed': '#2a7d2a',
    'confirmed': '#2a7d2a',
    'reverted': '#4a5fa5',
    'cancelled': '#4a5fa5',
    'failed': '#b06a00',
    'error': '#b3261e',
}


# --- command lines ---------------------------------------------------------------------------------------------------


def subcommands(parser):
    """Return (name, help, parser) of each subcommand. migrator-manage adds some only while it parses."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        parser.parse_known_args([])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help for choice in action._choices_actions}
            return [(name, helps.get(name, ''), one) for name, one in action.choices.items()]
    return []


def synopses(parser):
    """Yield (synopsis, action) of each argument of a parser, without its subcommands and ``--help``."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        if action.nargs == 0:
            value = ''
        elif action.choices and action.metavar is None:
            value = '{' + ','.join(str(choice) for choice in action.choices) + '}'
        else:
            value = action.metavar or action.dest.upper()
        yield ', '.join(f'{option} {value}'.strip() for option in action.option_strings) or value, action


def options(parser):
    """Return (synopsis, help) of each argument of a parser."""
    formatter = parser._get_formatter()
    return [(name, formatter._expand_help(action) if action.help else '') for name, action in synopses(parser)]


def usage(parser):
    """Return the usage of a parser, without the word at its beginning."""
    return ' '.join(parser.format_usage().split()).removeprefix('usage: ')


def sentence(text):
    """Return a help text in rst: with a capital, a full stop, and the options in it as literals."""
    plain = text.replace('\\', '\\\\').replace('*', '\\*').replace('`', '\\`').replace('|', '\\|')
    marked = re.sub(r'(?<![\w-])(--[a-z][a-z-]*)', r'``\1``', plain)
    # the name of a command or a service stays as it is
    first = marked.partition(' ')[0]
    capital = marked if '-' in first or '_' in first else marked[:1].upper() + marked[1:]
    return capital + ('' if capital.endswith(('.', ':')) else '.')


def synopsis(parser, common):
    """Return a command with the arguments that it requires; the common options are left out."""
    own = [(name, action.required) for name, action in synopses(parser) if name not in common]
    required = [name for name, is_required in own if is_required]
    return ' '.join([parser.prog, *required, *(['[OPTIONS]'] if len(required) < len(own) else [])])


def definitions(found):
    """Yield a definition list in rst."""
    for synopsis, text in found:
        yield from (f'``{synopsis}``', f'    {sentence(text) if text else "No help."}', '')


class CommandReference(SphinxDirective):
    """``.. command-reference:: module:function``, the function returning an ``argparse.ArgumentParser``."""

    required_arguments = 1

    def run(self):
        """Render the parser, one section a command."""
        module, _, function = self.arguments[0].partition(':')
        parser = getattr(importlib.import_module(module), function)()
        found = subcommands(parser)
        common = options(parser)
        lines = ['.. code-block:: text', '', f'    {usage(parser) if found else synopsis(parser, {})}', '']
        lines += definitions(common)
        for noun, _, noun_parser in found:
            verbs = subcommands(noun_parser)
            for verb, help_, verb_parser in verbs or [('', noun_parser.description or '', noun_parser)]:
                title = f'{parser.prog} {noun} {verb}'.strip()
                own = [one for one in options(verb_parser) if one not in common]
                lines += ['', title, '~' * len(title), '', sentence(help_), '']
                lines += ['.. code-block:: text', '', f'    {synopsis(verb_parser, dict(common))}', '']
                lines += definitions(own)
        text = '\n'.join(lines)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


# --- SVG -------------------------------------------------------------------------------------------------------------


def text(x, y, words, anchor='middle', **style):
    """Return one line of text."""
    extra = ''.join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{extra}>{html.escape(words)}</text>'


def box(x, y, width, height, words, fill, hint=''):
    """Return a box with a text in its middle."""
    title = f'<title>{html.escape(hint)}</title>' if hint else ''
    return (
        f'<g>{title}<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="#555"/>'
        f'{text(x + width / 2, y + height / 2 + 4, words)}</g>'
    )


def svg(width, height, label, parts):
    """Return a drawing that needs nothing outside of itself."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" style="{STYLE}">'
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#555"/></marker></defs>'
    )
    return nodes.raw('', head + ''.join(parts) + '</svg>', format='html')


def arrow(path, hint='', colour='#555', dash=''):
    """Return a line with a head at its end."""
    title = f'<title>{html.escape(hint)}</title>' if hint else ''
    dashes = f' stroke-dasharray="{dash}"' if dash else ''
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.4" marker-end="url(#arrow)"{dashes}>'
        f'{title}</path>'
    )


# --- the status graph ------------------------------------------------------------------------------------------------


def by_kind(moves):
    """Return the moves of live migrations and evacuations, and those of cold migrations."""
    from migrator.objects import migration

    cold, ends = {migration.MigrationStatus.PRE_MIGRATING}, {'failed', 'error'}
    while more := {end for start, end in moves if start in cold and end not in cold | ends}:
        cold |= more
    kinds = ({}, {})
    for (start, end), reason in moves.items():
        is_cold = bool(cold & {start, end})
        kinds[is_cold][start, end] = reason
        if start == 'accepted' and end in ends:
            kinds[not is_cold][start, end] = reason
    return kinds


def status_graph(moves, statuses, ends, label):
    """Draw the statuses in progress from top to bottom, and a lane for each end.

    A migration leaves the column for an end where that end's lane has a dot in the row of the status.
    """
    shown = [one for one in statuses if any(one in move for move in moves)]
    column = [one for one in shown if one not in ends]
    lanes = sorted((one for one in shown if one in ends), key=list(LANES).index)
    width, row, left, box_width = 800, 62, 130, 170
    rows = {one: 30 + row * number for number, one in enumerate(column)}
    bottom = 30 + row * len(column) + 20
    lane = {one: 400 + 110 * number for number, one in enumerate(lanes)}
    parts = []
    for one in column:
        last = max((lane[to] for start, to in moves if start == one and to in lane), default=None)
        if last:
            y = rows[one] + 17
            parts.append(f'<path d="M{left + box_width} {y}H{last}" stroke="#bbb" stroke-width="1.2"/>')
    for to, x in lane.items():
        starts = [rows[start] + 17 for start, end in moves if end == to]
        colour = LANES.get(str(to), '#555')
        parts.append(arrow(f'M{x} {min(starts)}V{bottom - 2}', colour=colour))
        parts.append(box(x - 50, bottom, 100, 34, str(to), '#f4f4f4'))
        for (start, end), reason in moves.items():
            if end == to:
                hint = f'{start} to {end}: {reason}'
                parts.append(
                    f'<circle cx="{x}" cy="{rows[start] + 17}" r="5.5" fill="{colour}">'
                    f'<title>{html.escape(hint)}</title></circle>'
                )
    for (start, end), reason in moves.items():
        if end not in rows:
            continue
        hint = f'{start} to {end}: {reason}'
        distance = column.index(end) - column.index(start)
        if distance == 1:
            middle = left + box_width / 2
            parts.append(arrow(f'M{middle} {rows[start] + 34}V{rows[end] - 1}', hint))
        else:
            bulge = left - 28 * abs(distance)
            y1, y2 = rows[start] + 17 + 4 * distance, rows[end] + 17 - 3 * distance
            parts.append(arrow(f'M{left} {y1}C{bulge} {y1} {bulge} {y2} {left - 1} {y2}', hint))
    parts += [box(left, rows[one], box_width, 34, str(one), '#e3ebf7') for one in column]
    return svg(width, bottom + 50, f'The statuses of {label} and the moves between them', parts)


class StatusGraph(SphinxDirective):
    """``.. status-graph::``, from ``migrator.objects.migration.LEGAL_MOVES``."""

    def run(self):
        """Render the graph, and the table of the moves."""
        from migrator.objects import migration

        moves = migration.LEGAL_MOVES
        table = ['.. list-table::', '   :header-rows: 1', '   :widths: 24 24 52', '']
        table += ['   * - from', '     - to', '     - when']
        for (start, end), reason in moves.items():
            table += [f'   * - ``{start}``', f'     - ``{end}``', f'     - {sentence(reason)[:-1]}']
        labels = ('a live migration or an evacuation', 'a cold migration')
        graphs = [
            status_graph(some, list(migration.MigrationStatus), migration.FINAL, label)
            for some, label in zip(by_kind(moves), labels, strict=True)
        ]
        return [*graphs, *self.parse_text_to_nodes('\n'.join(table))]


# --- the saga --------------------------------------------------------------------------------------------------------


def undo_order(saga):
    """Return the steps with an undo, in the order in which the saga runs the undos."""
    from migrator.saga import log

    done = [step for step in saga.steps if step.kind.value != 'retriable']
    step_log = log.StepLog(log.StepRecord(step.name, log.DO, log.StepState.DONE.value, 1) for step in done)
    found = []
    while (step := saga.next_undo(step_log, 1)) is not None:
        found.append(step)
        step_log.put([log.StepRecord(step.name, log.UNDO, log.StepState.DONE.value, 1)])
    return found


def saga_diagram(saga):
    """Draw the steps from top to bottom, and beside each the undo that takes it back."""
    width, row, left, box_width, right, undo_width = 800, 58, 60, 300, 470, 310
    order = undo_order(saga)
    parts = [
        text(left + box_width / 2, 22, 'do, downwards', font_weight='bold'),
        text(right + undo_width / 2, 22, 'undo, by number', font_weight='bold'),
    ]
    y, before = 36, None
    for number, group in enumerate(saga.groups, 1):
        kind = group[0].kind.value
        share = box_width / len(group)
        if before is not None:
            parts.append(arrow(f'M{left + box_width / 2} {before}V{y - 1}'))
        parts.append(text(left - 20, y + 20, str(number)))
        if len(group) == 1:
            parts.append(box(left, y, share, 34, group[0].name, COLOURS[kind], kind))
        else:
            for place, step in enumerate(group):
                parts.append(
                    box(left, y + 38 * place, box_width, 34, step.name, COLOURS[kind], f'{kind}, side by side')
                )
        middle = y + 17
        for step in group:
            if step in order:
                place = order.index(step) + 1
                words = f'{place}. {step.undo.__name__}'
                parts.append(box(right, y, undo_width, 34, words, COLOURS[kind]))
                parts.append(arrow(f'M{left + box_width} {middle}H{right - 1}', 'is undone by', dash='4 3'))
            elif step.undo is not None:
                other = next(one for one in order if one.undo is step.undo)
                parts.append(text(right, middle + 4, f'undone with {other.name}', 'start', fill='#555'))
            elif kind == 'compensatable':
                parts.append(text(right, middle + 4, 'changes nothing', 'start', fill='#555'))
            elif step is group[0]:
                parts.append(text(right, middle + 4, 'only forward', 'start', fill='#555'))
        before = y + 34 + 38 * (len(group) - 1)
        y += row + 38 * (len(group) - 1)
    x = left
    for kind, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour}" stroke="#555"/>')
        parts.append(text(x + 20, y + 12, kind, 'start'))
        x += 130
    return svg(width, y + 30, 'The steps of a live migration and their undos', parts)


class SagaDiagram(SphinxDirective):
    """``.. saga-diagram::``, from ``migrator.conductor.tasks.live_migrate.saga()``."""

    def run(self):
        """Render the saga, and say in words what it shows."""
        from migrator.conductor.tasks import live_migrate

        saga = live_migrate.saga()
        undos = ', then '.join(f'``{step.undo.__name__}``' for step in undo_order(saga))
        caption = f'When every step up to the pivot may have had an effect, the undos run in this order: {undos}.'
        return [saga_diagram(saga), *self.parse_text_to_nodes(caption)]


# --- what the API does not serve -------------------------------------------------------------------------------------


class NotServed(SphinxDirective):
    """``.. not-served::``, from ``migrator.api.handlers.not_served``."""

    def run(self):
        """Render a table with the methods of each URL, and the actions."""
        from migrator.api.handlers import not_served

        methods = {}
        for method, path in not_served.URLS:
            methods.setdefault(path, []).append(method)
        table = ['.. list-table::', '   :header-rows: 1', '   :widths: 70 30', '', '   * - URL', '     - methods']
        for path, found in methods.items():
            table += [f'   * - ``{path}``', f'     - {", ".join(found)}']
        actions = ', '.join(f'``{name}``' for name in sorted(not_served.ACTIONS))
        caption = f'The actions of ``/servers/{{id}}/action`` that are not served: {actions}.'
        return self.parse_text_to_nodes('\n'.join([*table, '', caption]))


# --- waits and reasons -----------------------------------------------------------------------------------------------


class Reasons(SphinxDirective):
    """``.. reasons:: WAITS``, from a table of ``migrator.objects.reasons``."""

    required_arguments = 1

    def run(self):
        """Render a table with the sentence of each kind."""
        from migrator.objects import reasons

        table = ['.. list-table::', '   :header-rows: 1', '   :widths: 24 76', '', '   * - kind', '     - words']
        for kind, words in getattr(reasons, self.arguments[0]).items():
            table += [f'   * - ``{kind}``', f'     - ``{words}``']
        return self.parse_text_to_nodes('\n'.join(table))


def setup(app):
    """Register the directives."""
    from migrator.runtime import concurrency

    # oslo.service would choose eventlet when a directive imports it
    concurrency.native()
    app.add_directive('command-reference', CommandReference)
    app.add_directive('status-graph', StatusGraph)
    app.add_directive('saga-diagram', SagaDiagram)
    app.add_directive('not-served', NotServed)
    app.add_directive('reasons', Reasons)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
