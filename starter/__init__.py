"""Everything that creates or steers messages: bulk starter, control, embedded server, command line."""
