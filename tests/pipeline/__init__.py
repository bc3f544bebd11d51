"""The pipeline on a real Spark: one session a process, feeds of the simulator, of real brokers, and made ones of any size."""
