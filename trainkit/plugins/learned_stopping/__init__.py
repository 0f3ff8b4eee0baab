"""The scheduler `LearnedStopping`, which learns from complete trials which trials to stop."""
