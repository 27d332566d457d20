"""The messages of kubelet's interfaces, described in our own words by their published names and field numbers.

*_pb2.py and *_pb2.pyi are generated: `make proto` after a change of a .proto.
"""
