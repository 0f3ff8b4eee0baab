"""Inline engine: every call runs at once in the calling process."""
