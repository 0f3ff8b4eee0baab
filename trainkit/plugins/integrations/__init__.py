"""Integrations of other tools, one per file: tracking services, and libraries whose training reports.

Each file is imported by its own name, such as
`from trainkit.plugins.integrations.mlflow import MLflowLoggerCallback`, and needs its tool installed.
"""
