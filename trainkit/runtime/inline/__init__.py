"""Inline engine, which runs every call immediately in the calling process."""
