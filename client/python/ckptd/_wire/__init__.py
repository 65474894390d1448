"""The wire protocol: its generated messages, and the errors that come back with a failed call."""
