"""What workflows keep for everybody: gates, idle capacity and measured capacity, as they are written down."""
