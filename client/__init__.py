"""What stands on the application's side of the wire: it speaks AMQP and HTTP, and imports no room of the broker.

It holds the demo, the stress runs with their verdicts, and the stages library.
"""
