"""Local transactions: what one holds (``tx_buffer``), who orders them (``coordinator``), what became of them (``outcomes``)."""
