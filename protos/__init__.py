"""The wire and everything persisted: .proto files, and the descriptors and types written from them (never edited by
hand)."""

if __name__ != "snapline.protos":
    raise ImportError("protos is a part of Snapline, and snapline its only name in Python: import snapline.protos")
