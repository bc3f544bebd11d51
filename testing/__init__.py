"""For tests of what extends the broker. The room is installed with the product; no other room imports it.

::

    disk                 a directory in memory that loses, tears and fails as a real one may; the simulator uses it too
    coordinator_kit/     what every transaction coordinator must do, as checks (docs/coordinators.md)
"""
