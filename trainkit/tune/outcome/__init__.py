"""What an experiment came to: results, and the ways to look at them."""
