"""What a session tells of itself: metrics, and the timeline of its calls."""
