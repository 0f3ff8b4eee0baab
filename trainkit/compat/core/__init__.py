"""Names of Ray core beyond the runtime's own."""
