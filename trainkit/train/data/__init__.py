"""The path of batches, in a worker, from the user's loader to the training step."""
