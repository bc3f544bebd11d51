"""The status of a shard, in one of three engines: `journal`, `mirrored` and `queue`. A crash leaves what was durable."""
