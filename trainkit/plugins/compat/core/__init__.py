"""Names of Ray Core that the runtime itself does not have."""
