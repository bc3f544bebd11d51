"""A shop whose state is a page: orders pass three stages over SQLite, and a button makes more of them.

    python examples/orders/page.py --broker amqp://127.0.0.1:5672/ --database shop.db --port 8080

The stages are those of the demonstration (``understudy.client.stages.demo.shop``): reserve, charge, ship. They run in this
program; more workers may run beside it:

    UNDERSTUDY_DEMO_BROKER=... UNDERSTUDY_DEMO_DATABASE=shop.db understudy stages run understudy.client.stages.demo.shop:stages

Kill workers and brokers while you look: the page says if an order is lost or done twice.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import json
import os
import random
import signal
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from understudy.client.stages import Stages, StagesError
from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.demo.books import (
    CENTS,
    CUSTOMERS,
    EFFECTS,
    ITEMS,
    PIECES,
    Books,
    doubled_of,
    open_books,
    read_books,
)
from understudy.client.stages.demo.settings import BROKER, DATABASE
from understudy.client.stages.looking.findings import list_of

SHOWN = 20
REFUSED_EVERY = 10
"""One order in so many has no amount, and becomes a dead letter."""


class Shop:
    """Content and actions of the page.

    Args:
        stages: the application.
        module: where its flow and its messages are.
        database: its file.
    """

    def __init__(self, stages: Stages, module: Any, database: Path) -> None:
        self._stages = stages
        self._module = module
        self._database = database
        self._turn = threading.Lock()

    def order(self, count: int) -> None:
        """Begin so many orders, each in an initiation with a name of its own."""
        with self._turn:
            first = max(read_books(self._database).orders, default=0) + 1
            for number in range(first, first + count):
                cents = 0 if number % REFUSED_EVERY == 0 else random.randint(100, 900)
                order = self._module.Order(number, random.randint(1, CUSTOMERS), random.randrange(ITEMS), cents)
                with self._stages.begin(name=f"order-{number}") as tx:
                    tx.db.execute("INSERT INTO orders VALUES (?, ?)", (number, cents))
                    self._module.checkout.send(order)

    def state(self) -> dict[str, Any]:
        """The books, the queues, and what is wrong."""
        books = read_books(self._database)
        try:
            listed = asyncio.run(self._listed())
        except StagesError as error:
            listed = {"stages": [], "error": str(error)}
        rows = [
            {
                "number": number,
                "cents": cents,
                **{name: books.effects[name].count(number) for name in EFFECTS},
            }
            for number, cents in sorted(books.orders.items(), reverse=True)[:SHOWN]
        ]
        return {
            "orders": len(books.orders),
            **{name: len(numbers) for name, numbers in books.effects.items()},
            "outbox": books.outbox,
            "wrong": wrong_in(books),
            "newest": rows,
            "broker": listed,
        }

    async def _listed(self) -> dict[str, Any]:
        connection = Connection(self._stages.addresses, "the page of the orders", give_up_s=2)
        try:
            await connection.reach()
            return await list_of(self._stages, connection)
        finally:
            await connection.close()


def wrong_in(books: Books) -> list[str]:
    """Faults that must never be seen, also while orders are under way; empty if all is well."""
    found = [f"{name}: order {number} twice" for name in EFFECTS for number in doubled_of(books.effects[name])]
    if books.cents != (CUSTOMERS + 1) * CENTS:
        found.append(f"the accounts hold {books.cents} cents, and not {(CUSTOMERS + 1) * CENTS}")
    if books.pieces > ITEMS * PIECES:
        found.append(f"stock and shipments hold {books.pieces} pieces, more than {ITEMS * PIECES}")
    return found


def page(state: dict[str, Any]) -> str:
    """The state as HTML."""

    def table(rows: Sequence[dict[str, Any]]) -> str:
        if not rows:
            return "<p>none</p>"
        head = "".join(f"<th>{html.escape(str(key))}</th>" for key in rows[0])
        cells = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row.values()) for row in rows)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{each}</tr>' for each in cells)}</table>"

    wrong = "; ".join(state["wrong"]) or "nothing is lost or doubled"
    counts = {key: state[key] for key in ("orders", *EFFECTS, "outbox")}
    stages = [{**each, "flows": " ".join(each["flows"])} for each in state["broker"]["stages"]]
    broker = table(stages) if stages else f"<p>{html.escape(state['broker'].get('error', ''))}</p>"
    return (
        "<!doctype html><title>Orders</title><meta http-equiv=refresh content=1>"
        "<style>body{font:16px sans-serif;margin:2em}td,th{padding:.1em 1em;text-align:right}</style>"
        f"<h1>Orders</h1><p><b>{html.escape(wrong)}</b></p>{table([counts])}"
        "<form method=post action=/order><button name=count value=1>one order</button> "
        "<button name=count value=100>a hundred orders</button></form>"
        f"<h2>Stages</h2>{broker}<h2>Newest orders</h2>{table(state['newest'])}"
    )


class Pages(BaseHTTPRequestHandler):
    """``/``, ``/state`` (JSON), and ``POST /order`` with count=N."""

    shop: Shop

    def do_GET(self) -> None:  # the name is http.server's
        if self.path == "/state":
            self._answer(json.dumps(self.shop.state()), "application/json")
        elif self.path == "/":
            self._answer(page(self.shop.state()), "text/html; charset=utf-8")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:  # likewise
        form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        _, _, count = form.partition("count=")
        if self.path != "/order" or not count.isdecimal() or not 1 <= int(count) <= 1000:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        self.shop.order(int(count))
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "/")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Run stages and page until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="amqp://127.0.0.1:5672,127.0.0.1:5673,127.0.0.1:5674/")
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    os.environ |= {BROKER: options.broker, DATABASE: str(options.database)}
    from understudy.client.stages.demo import shop  # noqa: PLC0415  # it reads the environment

    if not options.database.exists():
        open_books(options.database)
    assert shop.stages.database is not None
    shop.stages.database.prepare()
    Pages.shop = Shop(shop.stages, shop, options.database)

    def stop(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()

    with ThreadingHTTPServer(("127.0.0.1", options.port), Pages) as server, shop.stages.run_in_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
    shop.stages.close_blocking()


if __name__ == "__main__":
    main()
