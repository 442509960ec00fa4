"""The serving end of the exchange: one Flight server per TaskManager, one DoExchange stream per peer and edge.

It decides nothing about data: it polls subpartition views as far as credits allow and sends what they give.
"""
