"""What is known outside of the simulated system: what was asked, called and decided, and what states must be."""
