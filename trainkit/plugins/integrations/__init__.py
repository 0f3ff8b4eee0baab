"""Integrations with other tools, one per file: tracking services, and libraries that report during training.

Import each file by its own name, as in `from trainkit.plugins.integrations.mlflow import
MLflowLoggerCallback`; the tracking service's or library's package must be installed.
"""
