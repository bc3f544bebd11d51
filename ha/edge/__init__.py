"""The edge of the plugin in one broker process: the store's session, the links, the tasks."""
