"""One broker process: from its configuration to its exit code, its memory, its log, and its supervisor."""
