"""Adapters of `snapline.coordinator.ha.high_availability`: what a coordinator's successor finds."""
