"""What a transaction manager does next: generators yield `steps`, which an edge carries out."""
