"""``examples/orders``: the page shows orders that pass three stages."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.broker_process import get, wait_until

if TYPE_CHECKING:
    from understudy.testing.pytest_plugin import Beside

pytestmark = [pytest.mark.integration]

PAGE = Path(__file__).parents[2] / "examples" / "orders" / "page.py"


def test_the_page_of_the_orders_shows_their_way(understudy_beside: Beside, tmp_path: Path) -> None:
    broker = understudy_beside.broker()
    options = ["--broker", broker.address(broker.vhost()), "--database", str(tmp_path / "shop.db"), "--port", "0"]
    with (tmp_path / "log").open("wb") as log:
        page = subprocess.Popen([sys.executable, PAGE, *options], stdout=subprocess.PIPE, stderr=log, cwd=tmp_path)
    try:
        assert page.stdout is not None
        port = int(page.stdout.readline().decode().rpartition(":")[2].strip(" /\n"))
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        client.request("POST", "/order", body="count=11")
        assert client.getresponse().status == 303
        client.close()

        def through() -> dict[str, Any]:
            state = get(port, "/state", timeout_s=60)[1]
            return state if state.get("shipments") == 10 and state["broker"]["stages"][0]["dead_letters"] == 1 else {}

        state = wait_until("all orders are through", through)
        client.request("GET", "/")
        text = client.getresponse().read().decode()
        client.close()
    finally:
        page.send_signal(signal.SIGTERM)
        assert page.wait(60) == 0, (tmp_path / "log").read_text(encoding="utf-8")
        assert page.stdout is not None
        page.stdout.close()
    assert (state["orders"], state["holds"], state["charges"], state["wrong"]) == (11, 10, 10, [])
    assert [(each["stage"], each["dead_letters"]) for each in state["broker"]["stages"]] == [
        ("shop.reserve", 1),
        ("shop.charge", 0),
        ("shop.ship", 0),
    ]
    assert "nothing is lost or doubled" in text
