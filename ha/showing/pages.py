"""The HTTP pages of the HA plugin, for load balancers and scripts: ``/primary``, ``/backup``, ``/promotable``.

Each answers 200 for yes and 503 for no, whatever the broker's role; the body says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from understudy.broker.core.clients.carrying import clients_are
from understudy.broker.plugin_api.pages import BadQueryError, Page, Pages, Query
from understudy.ha.ha_broker import HaBroker
from understudy.ha.showing.health import RECOVERING, behind_records, is_active, promotion_blockers

_OK: Final = 200
_NO: Final = 503
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
            if ha is None:
                return Page(_NO, {"blockers": _shown(None) if answer is _promotable else [RECOVERING]})
            return answer(ha, query)

        return asked

    return {"/primary": page(_primary), "/backup": page(_backup, "lag"), "/promotable": page(_promotable)}


def _primary(ha: HaBroker, _: Query) -> Page:
    if is_active(ha):
        return Page(_OK, _facts(ha) | {"blockers": []})
    return Page(_NO, _facts(ha) | {"blockers": ha.blockers() or [ha.broker.reception.refusal]})


def _backup(ha: HaBroker, query: Query) -> Page:
    lag = query.get("lag")
    if lag is not None and not (lag.isascii() and lag.isdecimal() and len(lag) <= _MAX_DIGITS):
        raise BadQueryError(f"lag is a number of log records, not {lag!r}")
    behind = behind_records(ha)
    if ha.primary is not None:
        blockers = [f"{ha.config.broker} is the primary"]
    elif behind is None:
        blockers = ha.blockers()
    elif lag is not None and behind > int(lag):
        blockers = [f"{behind} log records behind, more than {lag}"]
    else:
        blockers = []
    fits = behind is not None and not blockers
    return Page(_OK if fits else _NO, _facts(ha) | {"behind_records": behind, "blockers": blockers})


def _promotable(ha: HaBroker, _: Query) -> Page:
    blockers = _shown(ha)
    return Page(_NO if blockers else _OK, _facts(ha) | {"blockers": blockers})


def _shown(ha: HaBroker | None) -> list[dict[str, str]]:
    return [attrs.asdict(each) for each in promotion_blockers(ha)]


def _facts(ha: HaBroker) -> dict[str, Any]:
    group = ha.group
    return {
        "broker": ha.config.broker,
        "status": ha.status.value,
        "epoch": group.epoch if group is not None else ha.replicator.epoch_seen,
        "primary": group.primary if group is not None else None,
        "clients": clients_are(ha.broker.reception),
    }
