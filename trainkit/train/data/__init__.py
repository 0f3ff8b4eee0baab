"""Path of batches from the user's loader to the step, in a worker."""
