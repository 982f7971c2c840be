"""Extras: parts that nothing else imports, each with its commands; a folder less, and the rest works as before."""
