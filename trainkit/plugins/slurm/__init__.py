"""Commands that submit scripts to Slurm and look after their jobs."""
