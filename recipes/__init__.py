"""Complete programs to read, run and start from; each uses only what `import trainkit` offers."""
