"""The actors of a coordinator: each a shell around one core, wired by `coordinator.cluster_entrypoint`."""
