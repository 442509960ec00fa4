"""Programs outside that are tasks of a job: `external_program` decides what becomes of what one of them says, and
`program_state` what its state is in a snapshot. The stream is served by `snapline.coordinator.rpc.external_gateway`."""
