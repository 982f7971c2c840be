"""Files of messages: rows of JSONL, CSV and Parquet, and loading them."""
