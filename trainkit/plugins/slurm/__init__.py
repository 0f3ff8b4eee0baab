"""Commands that submit scripts to Slurm and look after their jobs.

submit.py    `trainkit submit`: makes a job's folder and calls `sbatch`
batch.py     text of the batch script
code.py      copy of the project's code
settings.py  settings of a cluster, from files
jobs.py      jobs that were submitted, and what Slurm says about them
reasons.py   Slurm's states and reasons in plain words
commands.py  `trainkit jobs`, `logs` and `cancel`, and the part of `trainkit why` for jobs
"""
