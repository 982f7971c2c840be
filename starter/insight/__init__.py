"""What is due when, what that needs, and whether everything is well."""
