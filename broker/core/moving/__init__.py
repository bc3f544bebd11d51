"""Messages that may not stay, come back, come late or twice: what a primary does with them."""
