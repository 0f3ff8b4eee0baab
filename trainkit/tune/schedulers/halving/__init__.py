"""Successive halving: rungs, who is kept on them, and the brackets of them."""
