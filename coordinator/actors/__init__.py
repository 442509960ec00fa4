"""The actors of a coordinator: each a shell around one core, wired by `snapline.coordinator.cluster_entrypoint`."""
