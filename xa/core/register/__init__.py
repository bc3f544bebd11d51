"""What the state server records and answers: `state` decides, `wire` has the messages, `entry` what is recorded."""
