"""What stands on the application's side of the wire: it speaks AMQP and HTTP, and imports no room of the broker.

So far it holds the demo. The connection over several brokers with typed outcomes, stages, inbox and outbox come with their issue.
"""
