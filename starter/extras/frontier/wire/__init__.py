"""The interface as it travels: its description, and what grpcio-tools makes of that."""
