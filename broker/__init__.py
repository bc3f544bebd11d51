"""The host broker: AMQP 0-9-1, queues, the log and its journal, transactions, and the plugin API.

This room knows no word of high availability. What it offers instead is a log whose *stable position* decides when
anything becomes visible; alone, stable means fsynced here; a plugin may hold it back until others have it too.
"""
