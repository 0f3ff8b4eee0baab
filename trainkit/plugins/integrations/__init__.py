"""Integrations of other tools, one per file: tracking services, and libraries that report during training.

Each file is imported by its own name, as in
`from trainkit.plugins.integrations.mlflow import MLflowLoggerCallback`, and its tool must be installed.
"""
