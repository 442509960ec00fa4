"""Jobs that are declared in protobuf (`protos/declared.proto`), so that any language can submit one: built from their
declaration by the coordinator, to know their graph, and by each task, to run its part."""
