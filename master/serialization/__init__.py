"""Bodies of requests and responses: media types, protobuf and tables."""
