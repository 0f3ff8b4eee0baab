"""The loop over batches and one training step, in a worker."""
