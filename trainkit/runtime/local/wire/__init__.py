"""Wire protocol between the processes of a session."""
