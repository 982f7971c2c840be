"""What is of one machine: servers of Temporal, Kafka and codecs, its disk, and the terminal."""
