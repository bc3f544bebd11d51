"""Where the brokers of a run live, and what can be done to them there: processes of this host, or containers."""
