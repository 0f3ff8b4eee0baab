"""Controller of an experiment: a state machine, without side effects, that decides what happens to trials."""
