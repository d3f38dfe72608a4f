"""Compare settings on the user's data: quality within a margin, speed, memory."""
