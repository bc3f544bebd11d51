"""XaStatus: what a dtx verb answers. The numbers are those of AMQP 0-10 (domain dtx.xa-status)."""

from __future__ import annotations

import enum


class XaStatus(enum.IntEnum):
    """OK: done. RBROLLBACK, RBTIMEOUT: the branch is rolled back, or can only be; why. HEURHAZ: an operator has completed it."""

    OK = 0
    RBROLLBACK = 1
    RBTIMEOUT = 2
    HEURHAZ = 3
