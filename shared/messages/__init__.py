"""What a message is: its state, its outcomes, its envelope and signals, and the one function that decides on it."""
