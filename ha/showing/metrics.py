"""Metrics of the HA plugin for ``/metrics``: role, set, backups, readiness, links. Read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from understudy.broker.plugin_api.metrics import Family, labelled, one
from understudy.ha.ha_broker import HaBroker
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.showing.health import KINDS_OF_A_CORE, behind_records, promotion_blockers
from understudy.ha.status import BrokerStatus
from understudy.replicator.direct.session import LinkStatistics

_GROUP_STATUSES = tuple(status for status in BrokerStatus if status is not BrokerStatus.STANDALONE)


def broker_families(ha: HaBroker) -> list[Family]:
    """The broker's part in its group."""
    role = "primary" if ha.primary is not None else "backup"
    roles = ((each,) for each in ("primary", "backup"))
    statuses = (((each.value,), each is ha.status) for each in _GROUP_STATUSES)
    blockers = Counter(each.kind for each in promotion_blockers(ha))
    families = [
        labelled(
            "gauge",
            "understudy_ha_role",
            "1 for the role that it has.",
            ("role",),
            ((each, each[0] == role) for each in roles),
        ),
        labelled("gauge", "understudy_ha_status", "1 for the status that it has.", ("status",), statuses),
        one("gauge", "understudy_ha_promotable", "1 if it may be promoted, as /promotable.", not blockers),
        labelled(
            "gauge",
            "understudy_ha_promotion_blockers",
            "Reasons why it may not be promoted, by kind.",
            ("kind",),
            (((kind,), blockers[kind]) for kind in KINDS_OF_A_CORE),
        ),
    ]
    group = ha.group
    if group is not None:
        families += [
            one("gauge", "understudy_ha_group_epoch", "The epoch of the group.", group.epoch),
            one("gauge", "understudy_ha_in_sync_brokers", "Brokers of the in-sync set.", len(group.members)),
            one("gauge", "understudy_ha_min_insync", "The least in-sync set that decides.", group.min_insync),
        ]
    behind = behind_records(ha)
    if behind is not None:
        families.append(one("gauge", "understudy_ha_behind_records", "Records that this backup has to apply.", behind))
    if ha.primary is not None:
        families += _backup_families(ha.primary.readiness())
    return families


def _backup_families(rows: list[BackupReadiness]) -> list[Family]:
    """The primary's view of each backup."""
    label = ("backup",)

    def gauge(name: str, text: str, values: list[tuple[str, float]]) -> Family:
        return labelled("gauge", name, text, label, (((backup,), value) for backup, value in values))

    return [
        gauge("understudy_ha_backup_in_sync", "1 if it is in the in-sync set.", [(r.broker, r.listed) for r in rows]),
        gauge("understudy_ha_backup_linked", "1 if it is linked.", [(r.broker, r.linked) for r in rows]),
        gauge(
            "understudy_ha_backup_lag_records", "Records not acknowledged.", [(r.broker, r.lag_records) for r in rows]
        ),
        gauge(
            "understudy_ha_backup_lag_bytes",
            "Octets of log not acknowledged.",
            [(r.broker, r.lag_bytes) for r in rows if r.lag_bytes is not None],
        ),
        labelled(
            "gauge",
            "understudy_ha_backup_blockers",
            "What has to come before it is ready, by kind.",
            ("backup", "kind"),
            (((r.broker, kind), count) for r in rows for kind, count in r.counts().items()),
        ),
    ]


def link_families(links: Sequence[LinkStatistics], lost: int, refused: int, store_lost: bool) -> list[Family]:
    """Links and store of the process: the open links, and how many were lost and refused since it began."""
    label = ("peer",)
    waiting = Counter[str]()
    for link in links:
        waiting[link.peer] += link.waiting_bytes
    return [
        one(
            "gauge",
            "understudy_ha_store_connected",
            "1 if the store is reached and holds the group.",
            not store_lost,
        ),
        one("gauge", "understudy_ha_links", "Links that are open.", len(links)),
        one("counter", "understudy_ha_links_lost_total", "Links that were lost.", lost),
        one("counter", "understudy_ha_links_refused_total", "Connections that got no link.", refused),
        labelled(
            "gauge",
            "understudy_ha_link_waiting_bytes",
            "Octets that wait to be sent on the link.",
            label,
            (((peer,), size) for peer, size in waiting.items()),
        ),
    ]
