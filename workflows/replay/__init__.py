"""What makes a run decide on a replay as it did the first time."""
