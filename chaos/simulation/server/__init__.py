"""The server of a simulation: runs and their tasks, activities, matching with workers, requests for handlers."""
