"""The experiment's store."""
