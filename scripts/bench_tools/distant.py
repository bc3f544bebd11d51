"""``understudy cluster`` with each broker in a network namespace of its own.

    python -m bench_tools.distant DATA PORT NAMESPACE,...

Files, processes and their CPUs are those of ``understudy cluster``. Links go over TCP between 10.77.0.1, 10.77.0.2, ...; clients
reach a broker in its namespace alone. Each change is a JSON object on a line, as with ``understudy cluster --json``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import IO

import attrs

from understudy.broker.server.process.cpu_binding import usable_cpus
from understudy.broker.server.process.supervisor import Change, SupervisedBroker, Supervisor
from understudy.ha.trial.cpu_plan import cpu_plan
from understudy.ha.trial.edge.cluster_command import lay_out

_LINK = '[link]\nhost = "127.0.0.1"\n'


@attrs.frozen(kw_only=True)
class DistantBroker(SupervisedBroker):
    """A broker to run in ``namespace``, a file that ``nsenter`` takes."""

    namespace: str


class DistantSupervisor(Supervisor):
    """Supervisor of brokers in namespaces."""

    @staticmethod
    async def _start(about: SupervisedBroker, log: IO[bytes]) -> asyncio.subprocess.Process:
        assert isinstance(about, DistantBroker)
        return await asyncio.create_subprocess_exec(
            "nsenter",
            f"--net={about.namespace}",
            *(sys.executable, "-P", "-m", "understudy.broker.server", "--config", str(about.config), "--supervised"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            process_group=0,
        )


def _distant(broker: SupervisedBroker, number: int, namespace: str) -> DistantBroker:
    text = broker.config.read_text(encoding="utf-8")
    if _LINK not in text:
        raise SystemExit(f"{broker.config} has no {_LINK!r}")
    text = text.replace(_LINK, f'[link]\nunix = false\nhost = "10.77.0.{number + 1}"\n')
    broker.config.write_text(text, encoding="utf-8")
    return DistantBroker(broker=broker.broker, config=broker.config, log=broker.log, namespace=namespace)


def _report(change: Change) -> None:
    print(json.dumps(change), flush=True)


def main(data: str, port: str, namespaces: str) -> int:
    places = namespaces.split(",")
    brokers = lay_out(Path(data), len(places), int(port))
    distant: list[SupervisedBroker] = [
        _distant(broker, number, place) for number, (broker, place) in enumerate(zip(brokers, places, strict=True))
    ]
    cpus = cpu_plan([broker.broker for broker in brokers], usable_cpus(), None)
    return asyncio.run(DistantSupervisor(distant, restart=False, report=_report, cpus=cpus).run())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
