"""The HTTP pages of the HA plugin, for load balancers and scripts: ``/primary``, ``/backup``, ``/promotable``.

Each answers 200 for yes and 503 for no, whatever the broker's role; the body says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from understudy.broker.pages import BadQueryError, Page, Pages, Query
from understudy.ha.ha_broker import HaBroker
from understudy.ha.health import behind_records, is_active, promotion_blockers

_OK: Final = 200
_NO: Final = 503
_RECOVERING: Final = Page(_NO, {"blockers": [{"kind": "core", "text": "the core is being recovered"}]})
_MAX_DIGITS: Final = 18


def health_pages(running: Callable[[], HaBroker | None]) -> Pages:
    """The pages, by path. ``running``: the core that runs now, None between two."""

    def page(answer: Callable[[HaBroker, Query], Page], *parameters: str) -> Callable[[Query], Page]:
        def asked(query: Query) -> Page:
            unknown = query.keys() - set(parameters)
            if unknown:
                raise BadQueryError(
                    f"no parameter {min(unknown)!r}" + (f"; there is {parameters[0]}" if parameters else "")
                )
            ha = running()
            return _RECOVERING if ha is None else answer(ha, query)

        return asked

    return {"/primary": page(_primary), "/backup": page(_backup, "lag"), "/promotable": page(_promotable)}


def _primary(ha: HaBroker, _: Query) -> Page:
    return Page(_OK if is_active(ha) else _NO, _facts(ha) | {"blockers": ha.blockers()})


def _backup(ha: HaBroker, query: Query) -> Page:
    lag = query.get("lag")
    if lag is not None and not (lag.isascii() and lag.isdecimal() and len(lag) <= _MAX_DIGITS):
        raise BadQueryError(f"lag is a number of log records, not {lag!r}")
    behind = behind_records(ha)
    fits = behind is not None and (lag is None or behind <= int(lag))
    return Page(_OK if fits else _NO, _facts(ha) | {"behind_records": behind, "blockers": ha.blockers()})


def _promotable(ha: HaBroker, _: Query) -> Page:
    blockers = promotion_blockers(ha)
    return Page(_NO if blockers else _OK, _facts(ha) | {"blockers": [attrs.asdict(each) for each in blockers]})


def _facts(ha: HaBroker) -> dict[str, Any]:
    group = ha.group
    return {
        "broker": ha.config.broker,
        "status": ha.status.value,
        "epoch": group.epoch if group is not None else ha.replicator.epoch_seen,
        "primary": group.primary if group is not None else None,
    }
