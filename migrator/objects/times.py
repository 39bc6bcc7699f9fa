# SPDX-License-Identifier: Apache-2.0

"""Durations and times in words, and times as documents have them."""

from __future__ import annotations

import datetime


def span(seconds: float) -> str:
    """Return a duration in words."""
    whole = int(abs(seconds))
    if whole < 100:
        return f'{whole} s'
    minutes, whole = divmod(whole, 60)
    if minutes < 100:
        return f'{minutes} min {whole} s' if whole else f'{minutes} min'
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f'{hours} h {minutes} min' if minutes else f'{hours} h'
    return f'{hours // 24} d {hours % 24} h' if hours % 24 else f'{hours // 24} d'


def ago(at: datetime.datetime | None, now: datetime.datetime) -> str | None:
    """Return in words how long ago something happened, by the database's clock, or None if it never did."""
    return None if at is None else f'{span((now - at).total_seconds())} ago'


def moment(at: datetime.datetime) -> str:
    """Return the text of a time, in UTC and whole seconds."""
    return at.astimezone(datetime.UTC).strftime('%Y-%m-%d %H:%M:%S')


def iso(at: datetime.datetime | None) -> str | None:
    """Return a time in Nova's usual form, with microseconds and without a zone."""
    return None if at is None else at.astimezone(datetime.UTC).strftime('%Y-%m-%dT%H:%M:%S.%f')


def as_json(value: object) -> str | None:
    """Return a value of a document that JSON does not have: a time, as :func:`iso` writes it.

    :raises TypeError: it is no time.
    """
    if isinstance(value, datetime.datetime):
        return iso(value)
    raise TypeError(f'{type(value).__name__} cannot be converted to JSON')
