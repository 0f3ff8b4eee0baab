"""The scheduler `MedianStoppingRule`, with the standings of trials at any time."""
