"""The tests of Snapline: unit, scenarios, simulation, contract, integration and end to end."""
