"""Groups, their members and streams; reading queues; filters."""
