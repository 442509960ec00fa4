"""Tables of PostgreSQL, through psycopg."""
