"""The commands `dormice spark …`."""
