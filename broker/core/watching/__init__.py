"""Facts for the event feed, and views for plugins that watch."""
