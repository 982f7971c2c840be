"""The doctor: looks at everything that dormice stands on, and says of each part whether it is well and what to do."""
