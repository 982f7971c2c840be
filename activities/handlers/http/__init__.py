"""The `http` handler: what its payload asks for, the visit, and when it is time for the next one."""
