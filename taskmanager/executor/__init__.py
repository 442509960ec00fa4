"""The TaskExecutor core: slots, connections and tasks of one TaskManager."""
