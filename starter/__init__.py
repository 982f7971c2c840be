"""Everything that creates or steers messages: bulk starter, intake, control, embedded server, command line."""
