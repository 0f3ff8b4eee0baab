"""Tasks, objects and actors, on this machine's processes or inside the calling one."""
