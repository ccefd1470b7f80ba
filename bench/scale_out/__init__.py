"""Which operators get new machines: Stela, and the strategies that it was compared with."""
