"""What keeps an experiment: its file, copies of it elsewhere, and the way back from them."""
