"""What the server knows of a workflow without the help of its worker."""
