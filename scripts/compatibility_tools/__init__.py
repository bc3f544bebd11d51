"""The suites of other clients, run against this broker and against RabbitMQ.

What is run stands in `suites`, what may differ in `differences`. `outcomes` and `report` decide and do no I/O; `sources`,
`certificates`, `brokers` and `running` do the I/O. `cli` puts them together.
"""
