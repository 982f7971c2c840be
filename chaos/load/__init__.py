"""The load: what the messages of a run are like, who starts and steers them, and what their handlers do."""
