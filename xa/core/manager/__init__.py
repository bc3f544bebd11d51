"""The next step of a transaction manager: generators yield `steps`, which an edge carries out."""
