"""I/O of the event feed: journals, facts, cursors, the terminal, files; its command and its plugin."""
