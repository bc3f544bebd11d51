"""One look at a whole feed, and what its tallies show: the group's log, the primaries, and which evidence is missing."""
