"""The words of a program on a stage: its function, its queue, its messages, and what it is told of each of them."""
