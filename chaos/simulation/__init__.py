"""The simulation: runs the real workflow code in virtual time, on a model of Temporal's server."""
