"""All strikes there are, by the word that a script says."""

from __future__ import annotations

from tests.simulator.nemesis.at_brokers import (
    ClockJump,
    Crash,
    CrashAll,
    DiskFilled,
    DiskFull,
    DiskHang,
    DiskLow,
    FsyncError,
    LostTail,
    Pause,
    Power,
    PowerAll,
    VoteNo,
    Wipe,
    WipePrimary,
)
from tests.simulator.nemesis.at_network import (
    ClientReset,
    GroupLost,
    GroupSetBack,
    LinkReset,
    LostAnswer,
    Partition,
    PartitionOneWay,
    SessionLoss,
    SlowClient,
    SlowNetwork,
    StaleStore,
    StoreOutage,
    SwizzleClog,
    UnheardAdd,
)
from tests.simulator.nemesis.at_operators import Order
from tests.simulator.nemesis.strike import Strike

STRIKES: dict[str, type[Strike]] = {
    kind.verb: kind
    for kind in (
        *(Crash, Power, CrashAll, PowerAll, Pause, ClockJump, VoteNo),
        *(FsyncError, DiskFull, DiskLow, DiskFilled, DiskHang, Wipe, WipePrimary, LostTail),
        *(Partition, PartitionOneWay, SwizzleClog, LinkReset, SlowNetwork, ClientReset, SlowClient),
        *(SessionLoss, StoreOutage, StaleStore, LostAnswer, UnheardAdd, GroupLost, GroupSetBack),
        Order,
    )
}
