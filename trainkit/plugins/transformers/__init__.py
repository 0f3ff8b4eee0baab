"""Support for the trainer of Transformers in a training function."""
