"""Node process, which supervises the workers of a session and grants its resources."""
