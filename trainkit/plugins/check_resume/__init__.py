"""Command `trainkit check-resume`, which proves that a training script resumes exactly after a kill."""
