"""Everything that creates or steers messages: bulk starter, bridge, files, control, embedded server, command line."""
