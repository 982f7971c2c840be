"""The simulation: real workflow code in virtual time, against a model of what Temporal promises."""
