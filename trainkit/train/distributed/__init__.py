"""Communication between the processes that train together."""
