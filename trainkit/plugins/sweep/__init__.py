"""Command `trainkit tune`, which tunes any command line."""
