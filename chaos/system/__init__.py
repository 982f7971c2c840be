"""The system under test: its processes, its disk, and how they are started, killed and measured."""
