"""What carries an experiment out: processes of trials, and the loop that joins all parts."""
