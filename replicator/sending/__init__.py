"""The primary's end of the conversation: the stream of batches, and catch-ups beside it."""
