"""A whole group on one host, for trials and tests: the plan of its CPUs. The command and the servers are in `edge`."""
