"""The board of `dormice watch` and `dormice dev`: what it reads, how often, and how a terminal shows it."""
