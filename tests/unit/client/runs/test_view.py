"""Views of demo and stress: lines with the time elsewhere, and a picture in a terminal while clients work."""

from __future__ import annotations

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from understudy.client.demo.view import make_view
from understudy.client.runs.broker_group import READY, BrokerView
from understudy.client.runs.tally import Tally
from understudy.client.stress.faults.watch import Watch
from understudy.client.stress.report.view import make_view as make_stress_view

B1 = BrokerView(broker="b1", role="backup", status=READY, epoch=3)


class OfOneBroker(Watch):
    """A watch that has seen one broker."""

    def __init__(self) -> None:
        self.views = {"b1": B1}


def test_a_line_says_each_change_once() -> None:
    out = StringIO()
    view = make_view(Console(file=out, width=120))
    view.phase("three brokers start")
    view.changed(B1)
    view.changed(B1)
    assert [line.split(" s  ")[1] for line in out.getvalue().splitlines()] == [
        "three brokers start",
        "b1 backup ready, epoch 3",
    ]


@pytest.mark.asyncio
async def test_a_picture_is_drawn_in_a_terminal_until_it_is_cancelled() -> None:
    out = StringIO()
    view = make_stress_view(Console(file=out, width=120, force_terminal=True))
    view.phase("the load")
    drawing = asyncio.create_task(view.run(OfOneBroker(), Tally()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    view.phase("the load ends")  # the picture shows it
    drawing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drawing
    view.phase("the brokers stop")
    said = out.getvalue()
    assert "0 commits/s" in said
    assert "b1" in said
    assert ("the load ends" in said, "the brokers stop" in said) == (False, True)
