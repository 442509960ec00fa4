"""The wire and everything persisted: .proto files and the Python generated from them (never edited by hand)."""
