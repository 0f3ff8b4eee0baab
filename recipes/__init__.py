"""Complete programs to read, run and start from. Each uses only names that `import trainkit` offers."""
