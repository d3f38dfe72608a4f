"""Compare settings on your own data: quality within a margin, speed, memory."""
