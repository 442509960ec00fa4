"""The Dispatcher core: which jobs there are."""
