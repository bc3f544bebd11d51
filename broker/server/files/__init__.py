"""Files of a broker: its data directory, the journal's storage, who may read them, and the room that is left."""
