"""The file of profiles: resource managers, state servers, jobs, the address of a decision log."""
