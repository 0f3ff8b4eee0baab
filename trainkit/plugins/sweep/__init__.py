"""Command `trainkit tune`, which tunes any command line as a sweep file describes."""
