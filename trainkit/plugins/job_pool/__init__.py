"""Pool of jobs of a batch system, which grows and shrinks with the calls and trials that wait.

rules.py    pure rule: from jobs and waiting requests to the jobs to submit, drain and cancel
slurm.py    jobs of Slurm: batch script, `sbatch`, `squeue`, `scancel`
cluster.py  state of Ray's nodes, and requests that wait
pool.py     settings, and the thread of the driver that observes, asks the rule, and acts
"""
