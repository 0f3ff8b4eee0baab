"""Stoppers that end a trial or an experiment whose results have become stable."""
