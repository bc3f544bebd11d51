"""The client libraries of a run, each behind one interface, `connection`."""
