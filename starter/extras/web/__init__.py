"""What dormice answers over HTTP: the API of programs, and the operations page of people."""
