"""The coordination store in ZooKeeper (docs/zookeeper.md). `session` alone imports kazoo."""
