"""Pages that show experiments, finished or running, in a browser, and stop trials: `trainkit dashboard`."""
