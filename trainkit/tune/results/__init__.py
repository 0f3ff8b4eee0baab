"""Results of an experiment."""
