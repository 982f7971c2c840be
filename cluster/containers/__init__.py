"""The image of deploy/Dockerfile, built on a base of Debian's packages and run as production runs it."""
