"""Views: each reads what it shows within a time limit, and gives its template plain values."""
