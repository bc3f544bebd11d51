"""The commands ``understudy xa``: transactions in doubt, what an operator may do with them, and pages of metrics."""

from understudy.xa.commands.in_doubt import commit, forget, list_transactions, recover, rollback, show

__all__ = ["commit", "forget", "list_transactions", "recover", "rollback", "show"]
