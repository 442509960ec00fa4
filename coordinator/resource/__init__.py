"""The ResourceManager core: who is there, and who gets which slot."""
