"""Programs outside that are tasks of a job: `external_program` decides what becomes of what one of them says, and
`places` where those go whose tasks have rows. The stream is served by `snapline.coordinator.rpc.external_gateway`."""
