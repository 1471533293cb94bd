"""The gRPC services: decode, call the broker, encode. No decisions here."""
