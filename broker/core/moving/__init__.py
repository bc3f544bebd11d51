"""Messages that may not stay, come back, come late or twice: what the broker that leads does with them."""
