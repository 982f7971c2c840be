"""The operations page: what people see of an installation in a browser, and steer there if they may."""
