"""Plain data and pure functions that all parts of the tuner share."""
