"""``understudy serve`` as a broker without transactions: tx.select is answered with 540.

python no_transactions.py CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

from understudy.broker.core.clients.transacting import Transacting
from understudy.broker.errors import NotImplementedAmqpError
from understudy.broker.server.process.run import serve


def refuse(*_: Any) -> NoReturn:
    raise NotImplementedAmqpError("tx.select")


if __name__ == "__main__":
    Transacting._select = refuse  # type: ignore[method-assign,assignment]
    sys.exit(serve(Path(sys.argv[1])))
