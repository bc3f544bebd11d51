"""A broker with one known bug (``tests/simulator/mutations``), for ``scripts/stress --mutation NAME``.

python -m tests.stress.mutated_broker NAME --config FILE --supervised
python -m tests.stress.mutated_broker --list
"""

from __future__ import annotations

import runpy
import sys

from tests.simulator.mutations import CAMPAIGN, mutated


def main() -> None:
    name = sys.argv.pop(1)
    if name == "--list":
        print("\n".join(CAMPAIGN))
        return
    with mutated(name):
        runpy.run_module("understudy.broker.server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
