"""The data pipeline: audits, streams and reports over what the brokers' feeds say, on Spark.

It reads feeds (docs/feed.md) out of files or of Kafka, and nothing else: no broker knows of it, and none need run. PySpark is
imported here and nowhere else, and of this product the event schema alone (`understudy.observers.events_schema`). The extra
``pipeline`` installs it; Spark needs Java 17 or later. docs/pipeline.md has a tutorial, the rules and the sizing.
"""
