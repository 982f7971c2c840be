"""Reading files, tables and topics as frames of raw rows."""
