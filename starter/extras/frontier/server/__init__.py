"""The gRPC server through which crawlers reach the frontier."""
