"""The role of the broker that leads: the in-sync set, what backups lack, who is ready."""
