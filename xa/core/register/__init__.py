"""Records and answers of the state server: `state` decides, `wire` has the messages, `entry` what is recorded."""
