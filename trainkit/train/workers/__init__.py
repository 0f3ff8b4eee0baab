"""The processes that train together, started, called and replaced by a trainer."""
