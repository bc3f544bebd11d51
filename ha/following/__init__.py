"""The role of every broker that does not lead: it follows, and campaigns when nobody leads."""
