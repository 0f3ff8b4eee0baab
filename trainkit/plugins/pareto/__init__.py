"""`ParetoScheduler`, which stops trials by several objectives."""
