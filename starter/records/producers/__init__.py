"""What certain producers write in a way of their own, and how it is read."""
