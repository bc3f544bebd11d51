"""The command line of ``scripts/services``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from understudy.broker.errors import UnderstudyError
from understudy.ha.zookeeper_servers import MAX_SERVERS, TICK_MS, Ensemble, lay_out_ensemble


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="Starts servers on 127.0.0.1, says how to reach them, and stops them on SIGTERM or Ctrl-C.",
    )
    services = parser.add_subparsers(dest="service", required=True)
    zookeeper = services.add_parser("zookeeper", help="an ensemble of ZooKeeper servers")
    zookeeper.add_argument("--servers", type=int, default=1, choices=range(1, MAX_SERVERS + 1), metavar="N")
    zookeeper.add_argument("--data", type=Path, help="the folder of everything; a new one under /tmp by default")
    zookeeper.add_argument("--tick-ms", type=int, default=TICK_MS, help="sessions may last 2 to 20 ticks")
    zookeeper.add_argument("--json", action="store_true", help="one line with address, pids and data")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it; returns the exit code."""
    options = _options(arguments)
    data: Path = options.data or Path(tempfile.mkdtemp(prefix="understudy-services-"))
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    ensemble = Ensemble([])
    try:
        ensemble = lay_out_ensemble(data, options.servers, tick_ms=options.tick_ms)
        ensemble.start()
        if options.json:
            print(json.dumps({"address": ensemble.hosts, "pids": ensemble.pids, "data": str(data)}), flush=True)
        else:
            pids = ", ".join(map(str, ensemble.pids))
            print(f"ZooKeeper at {ensemble.hosts} (processes {pids}), data in {data}; Ctrl-C stops it", flush=True)
        signal.sigwait(stop)
    except UnderstudyError as error:
        print(f"scripts/services: {error}", file=sys.stderr)
        return 1
    finally:
        ensemble.stop()
    return 0
