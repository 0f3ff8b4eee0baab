"""The experiment's decisions: a state machine without effects."""
