"""Adapters of `snapline.coordinator.high_availability`: what a coordinator's successor finds."""
