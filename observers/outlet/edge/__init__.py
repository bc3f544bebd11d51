"""I/O of the outlet: its loop, Kafka's side, its command, its plugin and the process beside a broker."""
