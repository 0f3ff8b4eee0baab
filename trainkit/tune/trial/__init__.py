"""Code that runs in a trial's process."""
