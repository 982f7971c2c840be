"""The sub-commands of `dormice`, one file per family; nothing heavy is imported before a command runs."""
