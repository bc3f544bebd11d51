"""Work of clients under load: one workload a file, the worker that does it, and what must be true at its end."""
