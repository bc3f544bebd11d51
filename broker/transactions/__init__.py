"""Local transactions: what one holds (``tx_buffer``), who orders them (``commit_order``), what became of them (``outcomes``)."""
