"""Functions and classes of Ray Core that trainkit's runtime does not have itself."""
