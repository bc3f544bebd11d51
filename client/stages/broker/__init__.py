"""The broker's side: connections and channels, a delivery as the decisions see it, and the clock of the library."""
