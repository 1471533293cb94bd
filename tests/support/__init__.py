"""Support that tests of several layers share: fakes and fault injection."""
