"""Other tools, one file each: boards that follow an experiment, and libraries whose training reports.

Each is imported by its own name, such as
`from trainkit.tune.integrations.mlflow import MLflowLoggerCallback`, and needs its tool installed.
"""
