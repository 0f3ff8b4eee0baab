"""From a searcher to a trial: whole configurations, none twice, with names."""
