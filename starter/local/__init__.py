"""What is of one machine: servers of Temporal and Kafka, its disk, and the terminal."""
