"""A group's face: events, facts for the feed, health, metrics and pages."""
