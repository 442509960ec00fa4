"""The messages between processes, and the codecs between them and protobuf."""
