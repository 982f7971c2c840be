"""What the author of a handler uses; `activities` itself exports it."""
