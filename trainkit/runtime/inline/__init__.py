"""Inline engine: every call runs immediately in the calling process."""
