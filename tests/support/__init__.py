"""What tests share beside fixtures: processes, brokers, databases, browsers, and handlers under test."""
