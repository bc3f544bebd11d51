"""The plugin API: what a plugin may hook, and the values that it is shown or hands over."""
