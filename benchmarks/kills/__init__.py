"""Campaign that kills programs at random moments, starts them again, and checks what is there in the end."""
