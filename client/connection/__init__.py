"""Connections of applications to a group of brokers, with failover; the front door is `understudy.client`.

`core/` decides, without I/O; `aio_pika_driver` and `pika_driver` do what it says; `asynchronous` and `threads` are the two faces.
"""
