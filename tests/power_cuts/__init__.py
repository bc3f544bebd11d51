"""The store under power cuts, flipped bits and errors of the disk, with every image that these can leave.

A *life* is a script of what a journal's owner does, on a disk in memory. At each operation of that disk the power is cut, and each
image that this could leave is opened by the real recovery. The law of that moment says what must be found.

    python -m pytest tests/power_cuts                 what is checked at every run
    python -m tests.power_cuts --states 1000000       so many states of drawn lives (--seed N: from that seed on)
    python -m tests.power_cuts --length 4             every life of so many letters, every image
    python -m tests.power_cuts --compaction 100       so many lives of a broker that compacts
    python -m tests.power_cuts --bits                 all eight bits of each octet
    python -m tests.power_cuts --mutations            each known bug, and what finds it

===================  ============================================================================================
``cut_images``       every image that a cut could leave
``life``             a journal at work, and the law of the moment
``lives``            what it does: scripts, letters, seeds
``openings``         what recovery makes of an image, and what must hold then
``sweep``            lives, images and law together
``broker_life``      a broker that compacts: messages written again, notes settled, segments gone
``repairs``          a damaged journal is cut by an operator, with power cuts in that
``tails``            feed and outlet go on where they have read, when the power is back
``flips``            one bit is another one
``faults``           EIO, ENOSPC, short writes; reads that fail
``mutations``        known bugs, each of which must be found; ``campaign`` looks for them
===================  ============================================================================================

A moment lies before each operation that a cut may prevent, and where a file is being made, also in its midst. So the operation
under way is covered by the moment behind it: of an unsynced write any sectors may be there.
"""
