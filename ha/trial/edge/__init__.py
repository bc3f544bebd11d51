"""``understudy cluster``, and servers for trials and tests."""
