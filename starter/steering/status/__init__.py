"""What the server says of a workflow without the help of its worker."""
