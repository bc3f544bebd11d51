"""Role: what a core may do, and in whose epoch."""

from __future__ import annotations


class Role:
    """One per core.

    Attributes:
        epoch: in which it leads; 0 before that.
        name: this broker's id; "" before it leads.
        leading: it may change state: alone, or as the one of its group that leads.
        answering: it may tell and deliver; False while a promoted broker is recovering.
        leaving: it turns its clients away. That a consumer goes with them says nothing of its queue: the client comes back, here
            or elsewhere.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.name = ""
        self.leading = self.answering = self.leaving = False

    def lead(self, epoch: int, name: str) -> None:
        """Begin ``epoch``: nothing is answered before :meth:`answer`."""
        self.epoch = epoch
        self.name = name
        self.leading = True

    def answer(self) -> None:
        """Tell and deliver from now on."""
        self.answering = True

    def step_back(self) -> None:
        """Change, tell and deliver nothing any more."""
        self.leading = self.answering = False

    def leave(self) -> None:
        """Turn clients away from now on, for good."""
        self.leaving = True
