"""Programs that write what waits in another system as lines for `dormice load`, and write it back there."""
