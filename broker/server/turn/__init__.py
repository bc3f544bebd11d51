"""The turn: what has arrived is fed to the core, then the turn ends once; the journal's jobs."""
