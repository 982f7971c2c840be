"""What a process gets from outside: secrets and stop signals."""
