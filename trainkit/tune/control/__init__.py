"""What an experiment decides: the state machine and its rules; pure, but for nothing."""
