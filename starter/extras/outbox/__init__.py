"""Everything between a table in an application's PostgreSQL and the messages that its rows ask for."""
