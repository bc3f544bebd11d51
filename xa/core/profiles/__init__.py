"""What the file of profiles says: resource managers, state servers, jobs, the address of a decision log."""
