"""What sinks of table formats share: data files that lie where they stay, and are seen when a commit names them."""
