"""For tests of what extends the broker. The room is installed with the product; no other room imports it.

::

    disk                 a directory in memory that loses, tears and fails as a real one may; the simulator uses it too
    stages/              a broker beside the tests of stages, crashes, skipped time (docs/stages.md)
    pytest_plugin        its fixture ``stages_kit``
    stages_stress/       ``scripts/stress stages``
    coordinator_kit/     what every transaction coordinator must do, as checks (docs/coordinators.md)
"""
