"""The loop over batches and a single training step, in a worker."""
