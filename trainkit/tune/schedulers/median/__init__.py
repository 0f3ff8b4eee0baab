"""The running means that a trial is compared by, kept so that a median is found in microseconds."""
