"""Communication between processes that train together."""
