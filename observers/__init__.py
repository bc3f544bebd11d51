"""What hangs on the primary's hooks: here, the observer that writes each transaction to its tx-queue."""
