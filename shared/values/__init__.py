"""What processes are given from outside: secrets and signals."""
